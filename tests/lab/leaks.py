"""Find what a test left behind: processes and mounts.

Two nets. The test process is made a subreaper (prctl(2)), so whatever a test started stays below it in the process
tree however often it forks. And every process a test starts inherits a token in its environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.core import process

__all__ = ["LeakError", "find_leaks", "fresh_mounts", "watch"]

TOKEN = "WINDLASS_LEAK_TOKEN"
PR_SET_CHILD_SUBREAPER = 36
# How long after a test its processes may still be on their way out.
GRACE_S = 5.0


class LeakError(AssertionError):
    """A test left processes or mounts behind; they have been removed."""


@contextmanager
def watch(folder: Path, *, grace_s: float = GRACE_S) -> Iterator[None]:
    """Raise `LeakError` when the body leaves a process running or a mount below `folder`."""
    _become_subreaper()
    token, outer = os.urandom(8).hex(), os.environ.get(TOKEN)
    before = set(process.descendants(os.getpid()))
    os.environ[TOKEN] = token
    try:
        yield
    finally:
        if outer is None:
            del os.environ[TOKEN]
        else:
            os.environ[TOKEN] = outer
        left = _wait_for_end(token, before, grace_s)
        mounts = fresh_mounts(folder)
        described = [_describe(pid) for pid in left] + [f"mount {mount}" for mount in mounts]
        for pid in left:
            process.send_signal(pid, signal.SIGKILL)
    if described:
        raise LeakError("left behind by this test:\n  " + "\n  ".join(described))


def find_leaks(token: str, before: set[int]) -> list[int]:
    """Living processes that carry the token or stand below us and did not before."""
    below = set(process.descendants(os.getpid())) - before
    return sorted(below | set(process.find_by_environment(TOKEN, token)))


def fresh_mounts(folder: Path) -> list[str]:
    """Mount points below a folder; source: proc(5), /proc/pid/mounts."""
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [point for point in points if Path(point).is_relative_to(folder)]


def _become_subreaper() -> None:
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def _wait_for_end(token: str, before: set[int], grace_s: float) -> list[int]:
    deadline = time.monotonic() + grace_s
    while True:
        left = find_leaks(token, before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _describe(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return f"process {pid}"
    return f"process {pid}: {b' '.join(words).decode(errors='replace').strip()}"
