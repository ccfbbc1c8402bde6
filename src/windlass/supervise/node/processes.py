"""Processes of a node: all below its agent, or with the node's token in their variables."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path

from windlass.core.process import descendants, find_by_environment, send_signal
from windlass.supervise.node.spec import NODE_VARIABLE

__all__ = ["boot_clock", "end_leftovers", "end_processes", "last_lines", "reap"]

_GRACE_S = 5.0


def end_processes(root: int, *, limit_s: float = math.inf) -> None:
    """End every process below one: SIGTERM, then SIGKILL until none is left or the time is over.

    Ray's table of nodes is in memory and takes five seconds to end, so it is killed once it is alone.
    """
    end_s, last_s = time.monotonic() + _GRACE_S, time.monotonic() + limit_s
    for pid in descendants(root):
        send_signal(pid, signal.SIGTERM)
    while True:
        left = descendants(root)
        if not left or time.monotonic() > last_s:
            return
        if time.monotonic() > end_s or {_process_name(pid) for pid in left} <= {"gcs_server", ""}:
            for pid in left:
                send_signal(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)


def _process_name(pid: int) -> str:
    """Return a process's name; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def end_leftovers(token: str, *, limit_s: float = math.inf) -> None:
    """End the processes of a token that are not below this one, such as those of a killed agent."""
    last_s = time.monotonic() + limit_s
    while True:
        found = [pid for pid in find_by_environment(NODE_VARIABLE, token) if pid != os.getpid()]
        if not found or time.monotonic() > last_s:
            return
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        reap()
        time.sleep(0.02)


def reap() -> None:
    """Collect dead children, adopted ones included."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def last_lines(path: Path, count: int = 5) -> str:
    try:
        with open(str(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return " | ".join(line.strip() for line in lines[-count:]) or "no output"


def boot_clock() -> float:
    """Return the seconds since this machine booted, time asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
