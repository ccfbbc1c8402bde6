"""Stacks of a worker's threads, read with py-spy if installed, else with the worker's own fault handler."""

from __future__ import annotations

import os
import shutil
import signal
import time

from windlass.core.errors import WindlassError
from windlass.core.process import run

__all__ = ["STACK_SIGNAL", "read_stacks"]

STACK_SIGNAL = signal.SIGRTMIN + 7
"""Signal on which a worker writes the stacks of all its threads to the file named in its `hello`."""

_WAIT_S = 0.5
_MOST_BYTES = 8000
_OURS = ("/windlass/tune/executors/", "<frozen runpy>")


def read_stacks(pid: int, descriptor: int) -> str:
    """Return the stacks of a worker, innermost frames first; empty if unavailable. Blocks for up to half a second.

    Args:
        descriptor: the worker's descriptor of the file for stacks.
    """
    return _by_py_spy(pid) or _by_fault_handler(pid, descriptor)


def _by_py_spy(pid: int) -> str:
    program = shutil.which("py-spy")
    if program is None:
        return ""
    try:
        done = run([program, "dump", "--nonblocking", "--pid", str(pid)], timeout_s=10.0)
    except WindlassError:
        return ""
    return done.stdout[-_MOST_BYTES:] if done.code == 0 else ""


def _by_fault_handler(pid: int, descriptor: int) -> str:
    path = f"/proc/{pid}/fd/{descriptor}"
    try:
        before = os.stat(path).st_size
        os.kill(pid, STACK_SIGNAL)
        deadline = time.monotonic() + _WAIT_S
        while os.stat(path).st_size == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.01)  # the handler writes line by line
        with open(path, "rb") as file:
            file.seek(before)
            return _without_ours(file.read(_MOST_BYTES).decode(errors="backslashreplace"))
    except OSError:
        return ""


def _without_ours(text: str) -> str:
    """Remove the frames that every worker has, unless nothing else would remain."""
    kept = [line for line in text.splitlines() if not any(part in line for part in _OURS)]
    return "\n".join(kept) if any("File " in line for line in kept) else text
