"""Guard: a small process above a supervisor that keeps a replica's state when the supervisor dies.

It is the subreaper of the replica (orphans of user processes become its children), holds the ends of the log pipe,
starts and restarts the supervisor, and records exit codes of processes while no supervisor is alive. It makes no other
decisions.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from windlass.core.dataclass import dataclass
from windlass.core.files import take_lock, write_atomic
from windlass.core.json_text import decode_json, read_json
from windlass.core.process import ProcessId, identify, is_alive, is_here, send_signal
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.fencing.guard_file import GAVE_UP, guard_path
from windlass.supervise.linux import become_subreaper, create_memory_file, set_process_name
from windlass.supervise.logs.pipe import LogPipe

if TYPE_CHECKING:
    from windlass.supervise.fencing.agent import FencingAgentProcess, FencingConfig
    from windlass.supervise.fencing.shared_memory import SharedMemory

__all__ = [
    "CRASHED",
    "FORWARDED",
    "ForwardedSignals",
    "GuardContext",
    "Restarts",
    "guard",
    "is_gone",
    "killed_replica",
    "other_replicas",
]

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that the guard forwards to the supervisor."""

_ENTRY = struct.Struct("<qq")
_MAX_QUICK_RESTARTS = 5
_QUICK_S = 2.0
_MAX_CRASHES = 20
"""Maximum number of supervisor crashes within `_CRASHES_WITHIN_S`; kills do not count."""

_CRASHES_WITHIN_S = 3600.0
CRASHED = 70
"""Exit code of a replica whose guard gave up."""

_LOCK_WAIT_S = 0.5


@dataclass(frozen=True)
class GuardContext:
    """Handles that every incarnation of the supervisor inherits from its guard.

    Attributes:
        exits: file in memory with (pid, wait status) of reaped processes, opened for appending.
        shared_memory: where the fencing agent publishes decisions; None if the attempt is not fenced.
        is_first: whether the guard has started no other supervisor before this one.
    """

    log_pipe: LogPipe
    exits: int
    guard_pid: int
    shared_memory: SharedMemory | None = None
    is_first: bool = True

    def note_exit(self, pid: int, status: int) -> None:
        """Record a wait status for a later supervisor, in one write."""
        os.write(self.exits, _ENTRY.pack(pid, status))

    def decision(self) -> FenceDecision:
        """Return the agent's newest decision, or the initial one if there is no agent."""
        return self.shared_memory.decision() if self.shared_memory is not None else FenceDecision()

    def watchers(self) -> set[int]:
        """Return the pids of processes below the guard that are not user processes: the fencing agent."""
        return {self.shared_memory.agent()} - {0} if self.shared_memory is not None else set()

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes (negative for signals) of processes reaped by the guard or an earlier supervisor."""
        raw = os.pread(self.exits, os.fstat(self.exits).st_size, 0)
        whole = raw[: len(raw) - len(raw) % _ENTRY.size]
        return {pid: os.WEXITSTATUS(s) if os.WIFEXITED(s) else -os.WTERMSIG(s) for pid, s in _ENTRY.iter_unpack(whole)}


def is_gone(job_folder: Path, rank: int) -> bool:
    """Return whether neither guard nor supervisor of a replica on this machine is alive."""
    try:
        written = decode_json(guard_path(job_folder, rank).read_bytes())
    except FileNotFoundError:
        return True
    known = [ProcessId.parse(text) for text in written.values() if text != "None"]
    return all(is_here(process) and not is_alive(process) for process in known)


def killed_replica(job_folder: Path, rank: int) -> str:
    """Describe the guard and supervisor of a dead replica; "" if it never started or gave up."""
    path = guard_path(job_folder, rank)
    if not path.exists() or (job_folder / GAVE_UP.format(rank)).exists():
        return ""
    words = [f"{name} {text.partition(':')[0]}" for name, text in read_json(path).items() if text != "None"]
    return f"{' and '.join(words)} of replica {rank}"


def other_replicas(job_folder: Path, rank: int) -> set[int]:
    """Return the pids of other replicas' guards and supervisors on this node.

    They may be descendants of this replica, if it was the leader and started them.
    """
    found: set[int] = set()
    claims = [read_json(path) for path in job_folder.glob("leader-*.json")]
    if all(claim["rank"] != rank for claim in claims):
        return found
    for path in job_folder.glob("guard-*.json"):
        if path != guard_path(job_folder, rank):
            known = [ProcessId.parse(text) for text in read_json(path).values() if text != "None"]
            found.update(process.pid for process in known if is_alive(process))  # the pid may be from another machine
    return found


def guard(
    job_folder: Path, rank: int, supervise: Callable[[GuardContext], int], config: FencingConfig | None = None
) -> int:
    """Run the supervisor until it exits by itself, restarting it after crashes; return its exit code.

    If it keeps crashing, the guard gives up and ends the user's processes.

    Args:
        supervise: runs in a fork of this process; its return value ends the replica.
        config: settings of the fencing agent; None if the attempt is not fenced.
    """
    if not _lock_for_life(job_folder / f"guard-{rank}.lock"):
        return 0
    become_subreaper()
    agent = _create_agent(config)
    context = GuardContext(
        LogPipe.create(), _create_exits(), os.getpid(), None if agent is None else agent.shared_memory
    )
    if agent is None:
        return _run_supervisors(job_folder, rank, context, supervise, None)
    agent.start()
    try:
        return _run_supervisors(job_folder, rank, context, supervise, agent)
    finally:
        agent.end()


def _create_agent(config: FencingConfig | None) -> FencingAgentProcess | None:
    if config is None:
        return None
    from windlass.supervise.fencing.agent import FencingAgentProcess  # lazy: only for attempts that are fenced

    set_process_name(config.guard_name)
    return FencingAgentProcess(config)


def _run_supervisors(
    job_folder: Path,
    rank: int,
    context: GuardContext,
    supervise: Callable[[GuardContext], int],
    agent: FencingAgentProcess | None,
) -> int:
    """Start supervisors one after another, until one exits by itself or too many have crashed."""
    signals, restarts = _forward_signals(), Restarts()
    while True:
        started = time.monotonic()
        pid = _fork(job_folder, rank, context, supervise)
        context = replace(context, is_first=False)
        signals.forward_to(pid)
        status = _reap(pid, context, agent)
        signals.forward_to(0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        if code is not None and code != CRASHED:
            return code
        now = time.monotonic()
        pause_s = restarts.pause_s(ran_s=now - started, now=now, was_killed=code is None)
        if pause_s is None:
            _end_users(job_folder, rank)
            (job_folder / GAVE_UP.format(rank)).touch()
            return CRASHED
        time.sleep(pause_s)


class Restarts:
    """Pure policy for restarting a supervisor that did not exit by itself."""

    def __init__(self) -> None:
        self._crashes: list[float] = []
        self._num_quick = 0

    def pause_s(self, *, ran_s: float, now: float, was_killed: bool) -> float | None:
        """Return the seconds to wait before the next start; None if too many ended too soon.

        Args:
            ran_s: how long the last supervisor had run.
            was_killed: whether a signal killed it; otherwise it crashed.
        """
        if not was_killed:
            self._crashes = [at for at in self._crashes if at > now - _CRASHES_WITHIN_S] + [now]
        self._num_quick = self._num_quick + 1 if ran_s < _QUICK_S else 0
        is_enough = self._num_quick > _MAX_QUICK_RESTARTS or len(self._crashes) > _MAX_CRASHES
        return None if is_enough else 0.1 * self._num_quick


class ForwardedSignals:
    """Forwarder of signals from a guard to its supervisor, and to each later supervisor again.

    Args:
        send: sends a signal to a process: (its id, number).
    """

    def __init__(self, send: Callable[[int, int], object]) -> None:
        self._send = send
        self._supervisor = 0
        self._received: list[int] = []

    def forward_to(self, pid: int) -> None:
        """Forward signals to this process from now on; with 0, keep them for the next one."""
        self._supervisor = pid
        for number in list(self._received):
            self._forward(number)

    def receive(self, number: int) -> None:
        """Forward a signal that the guard received."""
        if number not in self._received:
            self._received.append(number)
        self._forward(number)

    def _forward(self, number: int) -> None:
        if self._supervisor:
            self._send(self._supervisor, number)


def _forward_signals() -> ForwardedSignals:
    signals = ForwardedSignals(send_signal)
    for number in FORWARDED:
        signal.signal(number, lambda number, _frame: signals.receive(number))
    return signals


def _end_users(job_folder: Path, rank: int) -> None:
    """End the user's processes, but not other replicas that this replica may have started."""
    from windlass.supervise.replica.process_tree import end_all  # lazy: a guard seldom needs it

    end_all([os.getpid()], lambda: other_replicas(job_folder, rank))


def _lock_for_life(path: Path) -> bool:
    """Lock the file of a replica's guard until this process ends; return False if another guard holds it.

    The supervisor inherits the lock, which ends with both processes. Raises PreconditionError if the file system has
    no locks.
    """
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            take_lock(descriptor, path)
            return True
        except BlockingIOError:  # fails also while another process checks the lock
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def _fork(job_folder: Path, rank: int, context: GuardContext, supervise: Callable[[GuardContext], int]) -> int:
    """Start a supervisor with the forwarded signals blocked; it unblocks them when it is ready."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    pid = os.fork()
    if pid == 0:
        code = CRASHED
        try:
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            if context.shared_memory is not None:
                set_process_name("windlass-super")
            code = supervise(context)
        finally:
            os._exit(code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    if context.shared_memory is not None:
        context.shared_memory.set_supervisor(pid)
    identities = {"guard": str(identify(os.getpid())), "supervisor": str(identify(pid))}
    write_atomic(guard_path(job_folder, rank), json.dumps(identities).encode(), is_durable=False)
    return pid


def _create_exits() -> int:
    descriptor = create_memory_file("windlass-exits")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


def _reap(supervisor: int, context: GuardContext, agent: FencingAgentProcess | None) -> int:
    """Wait for the supervisor and return its status.

    Record other exits for the next one, and restart a dead fencing agent.
    """
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return CRASHED << 8
        if pid == supervisor:
            return status
        if agent is None or not agent.restart_if(pid):
            context.note_exit(pid, status)
