"""Find what a test left behind: processes, mounts, and jobs, containers, networks and volumes in the session's labs.

Three nets. The test process is made a subreaper (prctl(2)), so whatever a test started stays below it in the process
tree however often it forks. Every process a test starts inherits a token in its environment. And whatever runs in a
lab's hosts, whoever started it, is a leak unless it is the lab's own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab.docker import docker_labs
from tests.lab.guests import inhabitants
from tests.lab.slots import Slot, mine
from tests.lab.slurm import SlurmLab, slurm_labs
from windlass.core import process

__all__ = ["LeakError", "find_leaks", "fresh_mounts", "watch"]

TOKEN = "WINDLASS_LEAK_TOKEN"
PR_SET_CHILD_SUBREAPER = 36
# How long after a test its processes may still be on their way out.
GRACE_S = 30.0


class LeakError(AssertionError):
    """A test left processes, mounts or jobs behind; they have been removed."""


@contextmanager
def watch(folder: Path, *, grace_s: float = GRACE_S, uses_labs: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raise `LeakError` when the body leaves a process, a mount below `folder`, or a job of this session's labs.

    Nodes that the body killed or cut off, and a controller that it killed, are no leak; they are brought back. Labs
    that were up before are left out when `uses_labs()` is false at the end: to look into them takes 0.1 s.
    """
    _become_subreaper()
    token, outer = os.urandom(8).hex(), os.environ.get(TOKEN)
    before, slots = set(process.descendants(os.getpid())), mine()
    if uses_labs():
        before = before.union(*(inhabitants(slot).guests for slot in slots))
    start_s, controllers = int(time.time()), {lab.name: lab.controller for lab in slurm_labs(slots)}
    os.environ[TOKEN] = token
    try:
        yield
    finally:
        if outer is None:
            del os.environ[TOKEN]
        else:
            os.environ[TOKEN] = outer
        slots = [slot for slot in mine() if uses_labs() or slot not in slots]
        labs = slurm_labs(slots)
        for lab in labs:
            lab.start_controller()
        left, jobs = _wait_for_end(lambda: find_leaks(token, before, slots), lambda: _jobs(labs, start_s), grace_s)
        described = [_describe(pid) for pid in left] + [f"mount {mount}" for mount in fresh_mounts(folder)] + jobs
        engines = docker_labs(slots)
        contents = [line for engine in engines for line in engine.left_overs()]
        described += contents
        for pid in left:
            process.send_signal(pid, signal.SIGKILL)
        for lab in labs:
            # A controller that was killed may have brought jobs of earlier tests back to life: no leak of this one.
            if jobs or lab.controller != controllers.get(lab.name, lab.controller) or not lab.is_whole():
                lab.heal()
        for engine in engines:
            if contents or not engine.is_up:
                engine.heal()
    if described:
        raise LeakError("left behind by this test:\n  " + "\n  ".join(described))


def find_leaks(token: str, before: set[int], slots: Sequence[Slot] = ()) -> list[int]:
    """Living processes that carry the token, or stand below us or are guests in labs and were not before."""
    labs = [inhabitants(slot) for slot in slots]
    fresh = set(process.descendants(os.getpid())).union(*(lab.guests for lab in labs)) - before
    found = fresh.union(process.find_by_environment(TOKEN, token))
    return sorted(found.difference(*(lab.own for lab in labs)))


def fresh_mounts(folder: Path) -> list[str]:
    """Mount points below a folder; source: proc(5), /proc/pid/mounts."""
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if Path(point).is_relative_to(folder)]


def _become_subreaper() -> None:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _jobs(labs: Sequence[SlurmLab], start_s: int) -> list[str]:
    """Jobs that were submitted at `start_s` or later, and are not over."""
    return [
        f"Slurm job {job_id} in {lab.name}: {job.state} {job.name}"
        for lab in labs
        for job_id, job in lab.queued().items()
        if job.submitted_s >= start_s
    ]


def _wait_for_end(
    find: Callable[[], list[int]], find_jobs: Callable[[], list[str]], grace_s: float
) -> tuple[list[int], list[str]]:
    deadline = time.monotonic() + grace_s
    while True:
        left, jobs = find(), find_jobs()
        if not (left or jobs) or time.monotonic() > deadline:
            return left, jobs
        time.sleep(0.1)


def _describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return f"process {pid}"
    return f"process {pid}: {b' '.join(words).decode(errors='replace').strip()}"
