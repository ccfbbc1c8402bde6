"""What srun prints about tasks of a step that were killed, read from the output of a batch job.

Slurm does not start a task again, and it keeps the step alive until its other tasks end, so this is the earliest that
anything is known of a replica all of whose processes were killed on a node that lives.

Source: srun's `task_state` and `_task_finish` messages (Slurm 22.05, src/srun/libsrun/launch.c and srun_job.c).
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["SrunOutput", "killed_tasks"]

_KILLED = re.compile(r"^srun: error: [^:\n]+: tasks? ([\d,\-\[\]]+): Killed$", re.MULTILINE)
_PIECE = re.compile(r"(\d{1,6})(?:-(\d{0,6}))?")
_MOST_BYTES = 1 << 20


def killed_tasks(text: str) -> set[int]:
    """The numbers of tasks that srun says were ended by SIGKILL: `n1: task 0: Killed`, `n[1-2]: tasks 0-1,4: Killed`."""
    found: set[int] = set()
    for match in _KILLED.finditer(text):
        for piece in match.group(1).strip("[]").split(","):
            numbers = _PIECE.fullmatch(piece)
            if numbers is not None:
                first, last = numbers.groups()
                found.update(range(int(first), int(last or first) + 1))
    return found


class SrunOutput:
    """The output of one start of a batch job.

    Args:
        path: the file; it may be missing.
        begin: the size of the file when this start began; a job that is started again appends to it.
    """

    def __init__(self, path: Path, begin: int) -> None:
        self._path, self._begin = path, begin

    def killed(self) -> set[int]:
        """The tasks that srun has said were killed, among its first megabyte of words."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._begin)
                return killed_tasks(file.read(_MOST_BYTES).decode(errors="replace"))
        except OSError:
            return set()
