"""The guard: the small process above a supervisor that lets nothing get lost when the supervisor dies.

It is the subreaper of the replica (orphans of the user's processes become its children), holds the ends of the log
pipe, starts the supervisor and starts it again, and notes how processes ended that no living supervisor waits for.
It decides nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from windlass.core.files import write_atomic
from windlass.core.process import ProcessId, boot_id, identify, is_alive
from windlass.supervise.channel import Channel
from windlass.supervise.guard_file import guard_path
from windlass.supervise.linux import become_subreaper, create_memory_file

__all__ = ["Held", "guard"]

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_ENTRY = struct.Struct("<qq")
_MAX_QUICK_RESTARTS = 5
_QUICK_S = 2.0
_CRASHED = 70
_LOCK_WAIT_S = 0.5


@dataclass(frozen=True)
class Held:
    """What every incarnation of the supervisor inherits.

    Attributes:
        exits: file in memory with (pid, wait status) of processes that were reaped, opened for appending.
        alive: read end of a pipe whose write end only the guard has: readable when the guard is dead.
    """

    channel: Channel
    exits: int
    alive: int
    guard_pid: int

    def note_exit(self, pid: int, status: int) -> None:
        """Keep a wait status for a supervisor that comes later; one write."""
        os.write(self.exits, _ENTRY.pack(pid, status))

    def exit_codes(self) -> dict[int, int]:
        """Exit codes (negative: signal) of processes that were reaped by the guard or a supervisor that is gone."""
        raw = os.pread(self.exits, os.fstat(self.exits).st_size, 0)
        whole = raw[: len(raw) - len(raw) % _ENTRY.size]
        return {pid: os.WEXITSTATUS(s) if os.WIFEXITED(s) else -os.WTERMSIG(s) for pid, s in _ENTRY.iter_unpack(whole)}


def is_gone(job_folder: Path, rank: int) -> bool:
    """Whether neither guard nor supervisor of a replica of this machine lives: any more, or yet."""
    try:
        written = json.loads(guard_path(job_folder, rank).read_bytes())
    except FileNotFoundError:
        return True
    known = [ProcessId.parse(text) for text in written.values() if text != "None"]
    boot = boot_id()
    return all(process.boot == boot and not is_alive(process) for process in known)


def guard(job_folder: Path, rank: int, supervise: Callable[[Held], int]) -> int:
    """Run a supervisor until it leaves by itself; returns its exit code.

    Args:
        supervise: runs in a fork of this process; its return value ends the replica.
    """
    if not _lock_for_life(job_folder / f"guard-{rank}.lock"):
        return 0
    become_subreaper()
    alive_read, alive_write = os.pipe()
    held = Held(Channel.create(), _create_exits(), alive_read, os.getpid())
    supervisor = 0

    def forward(number: int, _frame: object) -> None:
        if supervisor:
            os.kill(supervisor, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    num_quick = 0
    while True:
        started = time.monotonic()
        supervisor = _fork(job_folder, rank, held, alive_write, supervise)
        status = _reap(supervisor, held)
        supervisor = 0
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != _CRASHED:
            return os.WEXITSTATUS(status)
        num_quick = num_quick + 1 if time.monotonic() - started < _QUICK_S else 0
        if num_quick > _MAX_QUICK_RESTARTS:
            return _CRASHED
        time.sleep(0.1 * num_quick)


def _lock_for_life(path: Path) -> bool:
    """Whether this is the only guard of the replica; the lock passes to the supervisor and ends with both."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:  # also while somebody only looks whether it is held
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def _fork(job_folder: Path, rank: int, held: Held, alive_write: int, supervise: Callable[[Held], int]) -> int:
    pid = os.fork()
    if pid == 0:
        code = _CRASHED
        try:
            os.close(alive_write)
            for number in _FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            code = supervise(held)
        finally:
            os._exit(code)
    identities = {"guard": str(identify(os.getpid())), "supervisor": str(identify(pid))}
    write_atomic(guard_path(job_folder, rank), json.dumps(identities).encode(), is_durable=False)
    return pid


def _create_exits() -> int:
    descriptor = create_memory_file("windlass-exits")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


def _reap(supervisor: int, held: Held) -> int:
    """Wait for the supervisor, noting everybody else's end for the next one."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return _CRASHED << 8
        if pid == supervisor:
            return status
        held.note_exit(pid, status)
