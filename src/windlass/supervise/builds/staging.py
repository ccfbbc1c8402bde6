"""Environments on node-local disks: one archive on the shared file system, unpacked once per node."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from windlass.core.errors import AccessError, PreconditionError
from windlass.core.files import lock
from windlass.core.process import run
from windlass.supervise.builds.once import Ready, beside, build_once
from windlass.supervise.builds.watch import BuildWatch
from windlass.supervise.job import JobDocument

__all__ = ["ensure_archived", "stage", "stage_for_link"]

_TIMEOUT_S = 3600.0
_PAUSE_S = 1.0


def ensure_archived(place: Path) -> Path:
    """Create the archive of a finished environment if it is missing, and return its path; idempotent, blocking."""
    archive = beside(place, ".tar")
    if archive.exists():
        return archive
    with lock(beside(place, ".lock")):
        if not archive.exists():
            scratch = archive.with_name(f".{archive.name}.{os.getpid()}")
            _tar(["-cf", str(scratch), "-C", str(place), "."], f"packing {place}")
            os.replace(str(scratch), str(archive))
    return archive


def stage(place: Path, target: Path) -> Ready:
    """Copy the environment at `place` to `target` on this node's disk; the first caller unpacks it.

    Blocking: minutes for gigabytes. The folder above `target` belongs to this user alone.

    Raises:
        PreconditionError: there is no archive, or no space.
        AccessError: the folder belongs to another user.
    """
    archive = beside(place, ".tar")
    if not archive.exists():
        raise PreconditionError(f"{archive} does not exist", hint="launch again", code="env-not-staged")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.lstat(str(target.parent))
    if found.st_uid != os.getuid() or os.path.islink(str(target.parent)):
        raise AccessError(
            f"{target.parent} on {os.uname().nodename} belongs to another user, who could put code into it",
            hint="set `fs.node_local` in the site profile to another folder",
            code="env-not-staged",
        )

    def unpack(folder: Path) -> dict[str, object]:
        _tar(["-xf", str(archive), "-C", str(folder)], f"unpacking {archive} to {folder}")
        folder.chmod(0o755)  # the root folder in the archive is read-only
        (folder / ".ready").unlink()
        return {"proof": "bin/python", "from": str(place)}

    return build_once(target, unpack, lambda line: None)


def stage_for_link(job_folder: Path) -> None:
    """Copy the environment to this node's disk if the job requests that. Blocking.

    On a node without space, a link to the shared one is used, with a message; the gate handles one that is never built.
    """
    job = JobDocument.read(job_folder / "job.json")
    if not job.paths.stage:
        return
    place, target = Path(job.paths.build_lock[: -len(".lock")]), Path(job.paths.stage)
    watch = BuildWatch(job.paths.environment, job.paths.build_lock)
    while not watch.look(time.monotonic()):
        if not watch.reason:
            _stage_or_link(place, target)
            return
        time.sleep(_PAUSE_S)


def _stage_or_link(place: Path, target: Path) -> None:
    try:
        stage(place, target)
    except (PreconditionError, OSError) as error:
        sys.stderr.write(f"windlass: using the environment at {place}, not a copy on this node's disk: {error}\n")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(beside(target, ".lock")):
            if not os.path.lexists(str(target)):
                os.symlink(str(place), str(target))


def _tar(arguments: list[str], what: str) -> None:
    done = run(["tar", *arguments], timeout_s=_TIMEOUT_S)
    if done.code != 0:
        last = done.stderr.strip().split("\n")[-1]
        is_full = "No space left" in done.stderr
        raise PreconditionError(
            f"{what} failed: {last}",
            hint="free some space on that disk" if is_full else "",
            code="disk-full" if is_full else "env-not-staged",
        )
