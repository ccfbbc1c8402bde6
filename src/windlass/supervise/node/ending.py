"""End of a node: why it must end, how long the machine of a node that failed stays for its logs, and `node-stop`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable

from windlass.core.errors import PreconditionError
from windlass.core.files import take_lock
from windlass.core.process import ProcessId, descendants, find_by_environment, identify, is_alive, send_signal
from windlass.supervise.node.container import NOT_REMOVED, end_container, read_container
from windlass.supervise.node.head_link import silence_limit_s
from windlass.supervise.node.processes import end_leftovers
from windlass.supervise.node.ray_node import scratch_of
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder, NodeSpec

__all__ = ["KEEP_FAILED_S", "await_machine_end", "end_node", "ends_because"]

KEEP_FAILED_S = 900.0
"""Seconds for which a rented machine whose set-up or Ray failed stays, so that its logs can be read; then it ends itself."""

_LOOK_S = 0.25
_POLL_S = 0.05
_KILL_S = 5.0
_FIRST_S = 10.0


def ends_because(
    spec: NodeSpec, *, age_s: float, is_stop_requested: bool, silent_s: float = 0.0, problem: str = ""
) -> str:
    """Return why a node must end now; empty if it goes on. Pure.

    Args:
        age_s: seconds since the node's agent first started.
        silent_s: seconds since the head last replied.
        problem: why it does not.
    """
    if is_stop_requested:
        return "stopped"
    if spec.ttl_s is not None and age_s >= spec.ttl_s:
        return f"its time to live of {spec.ttl_s:g} s is over"
    if silent_s > silence_limit_s(spec):
        return f"the head has been silent for {silent_s:.0f} s" + (f": {problem}" if problem else "")
    return ""


def await_machine_end(
    folder: NodeFolder,
    process: str,
    reason: Callable[[], str],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until the machine of a node that failed must end; return why, or nothing if another agent has the node now.

    Whoever is told a reason holds the node's lock until this process ends: no agent starts on a machine that ends.

    Args:
        process: the agent that failed, as its status names it; it does not hold the lock any more.
        reason: returns why the machine must end earlier; empty if it need not.
    """
    began_s = monotonic()
    while not _is_taken_over(folder, process):
        failed_s, found = monotonic() - began_s, ""
        with contextlib.suppress(OSError):  # a disk that fails does not keep the machine
            found = reason()
        if not found and failed_s >= KEEP_FAILED_S:
            found = f"its node failed {failed_s:.0f} s ago"
        if found:
            return found if _takes_lock(folder) else ""
        sleep(_LOOK_S)
    return ""


def _is_taken_over(folder: NodeFolder, process: str) -> bool:
    """Return whether the status is of another agent; one that is missing or damaged is of none."""
    try:
        status = folder.read_status()
    except PreconditionError:
        return False
    return status is not None and status.process != process


def _takes_lock(folder: NodeFolder) -> bool:
    """Return whether no agent has the node; this process then holds its lock, if its folder is still there."""
    try:
        lock = os.open(str(folder.path / "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        take_lock(lock, folder.path / "lock")
    except BlockingIOError:
        return False
    except OSError:  # no folder, or a disk that is full: the machine ends all the same
        return True
    return True


def end_node(path: Path, *, timeout_s: float = 30.0) -> int:
    """End a node: ask its agent, then end what is left; return 0 if nothing of it is alive.

    An agent that does not end in time is killed, except on a rented machine, which it ends. `NOT_REMOVED`: the engine
    did not remove the node's container.
    """
    folder = NodeFolder(path)
    if path.exists():
        folder.request_stop()  # before all else: an agent that somebody starts meanwhile, or later, ends at once
    try:
        spec = folder.read_spec()
    except PreconditionError:
        return 1 if (path / "spec.json").exists() else 0  # a machine that was only claimed has no agent
    end_s = time.monotonic() + timeout_s
    while _agent_of(folder) and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    orphans = [] if spec.shutdown else _kill_agent(folder)
    end_container(path, limit_s=_FIRST_S, is_last=False)  # its end is clean while what serves it lives
    for process in orphans:
        if is_alive(process):
            send_signal(process.pid, signal.SIGKILL)
    end_leftovers(spec.token)
    left = end_container(path, is_last=not _agent_of(folder))
    shutil.rmtree(str(scratch_of(spec.token)), ignore_errors=True)
    if left:
        return _say_left(path, left)
    status = folder.read_status()
    if status is not None and status.ended_at is None:
        folder.write_status(replace(status, state="ended", message="stopped", ended_at=time.time()))
    return 1 if find_by_environment(NODE_VARIABLE, spec.token) else 0


def _say_left(path: Path, left: str) -> int:
    sys.stderr.write(f"{left}\n")
    try:
        container = read_container(path)
    except PreconditionError:
        container = None
    if container is None:
        return 1
    sys.stderr.write(f"{container.removal}\n")
    return NOT_REMOVED


def _kill_agent(folder: NodeFolder) -> list[ProcessId]:
    """End an agent that was told to end and does not; return the processes that were below it."""
    end_s, below = time.monotonic() + _KILL_S, []
    agent = _agent_of(folder)
    if agent:
        below = [found for found in map(identify, descendants(agent)) if found is not None]
    while agent and time.monotonic() < end_s:
        send_signal(agent, signal.SIGKILL)
        time.sleep(_POLL_S)
        agent = _agent_of(folder)
    return below


def _agent_of(folder: NodeFolder) -> int | None:
    status = folder.read_status()
    if status is None or status.ended_at is not None:
        return None
    pid = status.process.partition(":")[0]
    found = identify(int(pid)) if pid.isdigit() else None
    return int(pid) if found is not None and str(found) == status.process else None
