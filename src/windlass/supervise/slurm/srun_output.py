"""Parser of srun's messages about killed tasks of a step, in a batch job's output.

Slurm does not restart a task, and keeps the step alive until its other tasks end. So these messages are the earliest sign
that all processes of a replica were killed on a live node.

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
    """Return the tasks that srun reports as killed: `n1: task 0: Killed`, `n[1-2]: tasks 0-1,4: Killed`."""
    found: set[int] = set()
    for match in _KILLED.finditer(text):
        for piece in match.group(1).strip("[]").split(","):
            numbers = _PIECE.fullmatch(piece)
            if numbers is not None:
                first, last = numbers.groups()
                found.update(range(int(first), int(last or first) + 1))
    return found


class SrunOutput:
    """Output of a batch job since one of its starts.

    Args:
        path: the file; it may be missing.
        begin: size of the file when this start began; a restarted job appends to it.
    """

    def __init__(self, path: Path, begin: int) -> None:
        self._path, self._begin = path, begin

    def killed(self) -> set[int]:
        """Return the tasks that the first megabyte of the output reports as killed."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._begin)
                return killed_tasks(file.read(_MOST_BYTES).decode(errors="replace"))
        except OSError:
            return set()
