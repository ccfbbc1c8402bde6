"""Start of a job's guard, which happens exactly once even if a client dies before it has recorded the start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from windlass.backends.local.early_guard import guard_environment, use_early_guard
from windlass.backends.protocol import Rendered, Submission
from windlass.core.errors import PreconditionError
from windlass.core.files import lock, write_atomic, write_json
from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, find_by_environment, identify, process_world
from windlass.supervise.fencing.guard_file import guard_path

__all__ = ["SUBMITTED", "read_dictionary", "submit"]

SUBMITTED = "submitted.json"
"""File with the guard that a submission started, and the machine, boot and PID namespace of its process id."""

_SUBMISSION_NAME = "WINDLASS_SUBMISSION"


def submit(rendered: Rendered) -> Submission:
    """Write the files and start the guard, unless an earlier call already has. See `Backend.submit`."""
    folder = rendered.folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "submit.lock"):
        earlier = _find(rendered)
        if earlier is not None:
            return earlier
        for name, content in rendered.files.items():
            write_atomic(folder / name, content.encode(), syncs_folder=False)  # written again if it is lost
        return _start(rendered)


def read_dictionary(path: Path) -> dict[str, object]:
    """Return the object in a JSON file; raises PreconditionError (`plan-broken`) if the file is damaged."""
    try:
        value = read_json(path)
    except ValueError as error:
        raise PreconditionError(f"{path} is damaged: {error}", code="plan-broken") from error
    if not isinstance(value, dict):
        raise PreconditionError(f"{path} is damaged", code="plan-broken")
    return value


def _find(rendered: Rendered) -> Submission | None:
    """Return the job that an earlier call started with this token, even if its client recorded nothing."""
    marker = rendered.folder / SUBMITTED
    if marker.exists():
        return _submission(rendered.folder, str(read_dictionary(marker)["guard"]))
    if not (rendered.folder / "job.json").exists():
        return None
    written = guard_path(rendered.folder, 0)
    if written.exists():
        return _submission(rendered.folder, str(read_dictionary(written)["guard"]))
    for pid in find_by_environment(_SUBMISSION_NAME, rendered.token):
        process = identify(pid)
        if process is not None:
            write_json(marker, {"guard": str(process), "where": process_world()})
            return _submission(rendered.folder, str(process))
    return None


def _start(rendered: Rendered) -> Submission:
    folder = rendered.folder
    try:
        process = use_early_guard(rendered.argv) or _start_guard(rendered)
    except OSError as error:
        raise PreconditionError(f"cannot start {rendered.argv[0]}: {error.strerror}", code="start-failed") from error
    identity = str(identify(process.pid) or ProcessId(process.pid, 0, ""))
    write_json(folder / SUBMITTED, {"guard": identity, "where": process_world()}, is_durable=False)
    process.returncode = 0  # it outlives this process, which does not wait for it
    return _submission(folder, identity)


def _start_guard(rendered: Rendered) -> subprocess.Popen[bytes]:
    with (rendered.folder / "guard.out").open("ab") as output:
        return subprocess.Popen(
            rendered.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**guard_environment(), _SUBMISSION_NAME: rendered.token},
        )


def _submission(folder: Path, guard: str) -> Submission:
    pid = guard.partition(":")[0]
    return Submission(backend_id=guard, locator=f"local://{os.uname().nodename}/{pid}{folder}", folder=folder)
