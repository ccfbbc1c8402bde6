"""Fencing agent: a child of the guard that stops or kills the user processes of a disconnected replica.

    guard --> supervisor     (may hang in the shared file system)
          --> fencing agent  (never touches it) --> heartbeat process (may hang in it)

It lives as long as its guard or one of the guard's supervisors, and is restarted when it dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import zlib
from pathlib import Path
from typing import Callable, Protocol

from windlass.core.dataclass import dataclass
from windlass.core.process import send_signal
from windlass.supervise.fencing.fence import Action, FenceDecision, FencingAgentCore
from windlass.supervise.fencing.heartbeat import HeartbeatProcess, unpack_heartbeats
from windlass.supervise.fencing.process_scan import UserProcessScan
from windlass.supervise.fencing.shared_memory import SharedMemory, since_boot
from windlass.supervise.job import Fencing
from windlass.supervise.linux import die_with_parent, set_process_name
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.process_tree import sweep

__all__ = ["Fencer", "FencingAgent", "FencingAgentProcess", "FencingConfig"]

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTSTP)
"""Signals that a scheduler sends to every process of a job; the fencing agent ignores them."""

_READ_BYTES = 9 * 100
_QUICK_S = 2.0
_MIN_GAP_S = 2.0
_POLL_TURNS = 2
_RESTART_PAUSE_S = 1.0


@dataclass(frozen=True)
class FencingConfig:
    """Settings of a fencing agent.

    Attributes:
        token: token of the run on this machine, as in the environment of the user's processes.
        incarnation: name of this start of the job; empty if a job starts only once.
    """

    job_folder: Path
    rank: int
    token: str
    incarnation: str
    fencing: Fencing

    @property
    def guard_name(self) -> str:
        """Return the process name of this job's guards, at most 15 characters."""
        return f"windlass-{zlib.crc32(self.token.encode()) & 0xFFFFFF:06x}"


class FencingAgentProcess:
    """Guard's handle for its fencing agent: starts it, and restarts it if it dies.

    The guard stays single-threaded. Only the guard and its supervisors hold the write end of the lifeline, a pipe, so
    its end of file means that all of them are dead.
    """

    def __init__(self, config: FencingConfig) -> None:
        self.shared_memory = SharedMemory.create()
        self._config = config
        self._lifeline, self._held_end = os.pipe()
        self._pid = 0
        self._started_at = float("-inf")

    def start(self) -> None:
        """Fork an agent; wait a moment if the last one died immediately. Raises OSError if the fork fails."""
        if time.monotonic() < self._started_at + _QUICK_S:
            time.sleep(_RESTART_PAUSE_S)
        self._started_at = time.monotonic()
        guard_pid = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    _become_agent(self._config, self.shared_memory, guard_pid, self._lifeline)
                finally:
                    os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
        self.shared_memory.set_agent(self._pid)

    def restart_if(self, pid: int) -> bool:
        """Restart the agent if `pid` was the agent; return whether it was."""
        if pid != self._pid:
            return False
        while True:
            with contextlib.suppress(OSError):  # out of processes: retry, since the ranks must not run without an agent
                self.start()
                return True

    def end(self) -> None:
        """Kill the agent at the end of the replica; its heartbeat process dies with it."""
        send_signal(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _become_agent(config: FencingConfig, shared_memory: SharedMemory, guard_pid: int, lifeline: int) -> None:
    """Close every file on the shared file system, then run the agent."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    set_process_name("windlass-fencer")
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, shared_memory.fd, lifeline):
            with contextlib.suppress(OSError):
                os.close(int(name))
    FencingAgent(config, shared_memory, guard_pid, lifeline).run()


class FencedProcesses(Protocol):
    """The user's processes of one replica, and the actions that a `Fencer` needs."""

    def exist(self) -> bool:
        """Return whether any user process exists."""

    def stop(self) -> None:
        """Stop the user processes (SIGSTOP)."""

    def resume(self) -> None:
        """Resume the stopped user processes (SIGCONT)."""

    def kill(self) -> object:
        """Kill the user processes (SIGKILL)."""


class Fencer:
    """Shell around `FencingAgentCore` that applies its decisions to one replica's user processes.

    Args:
        decision: the last decision of an earlier fencing agent of this replica, or the initial one.
        publish: passes a decision to guard and supervisor.
        clock: seconds since boot.
    """

    def __init__(
        self,
        fencing: Fencing,
        decision: FenceDecision,
        processes: FencedProcesses,
        publish: Callable[[FenceDecision], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._publish, self._clock = processes, publish, clock
        self._ran_at = clock()
        self._core = FencingAgentCore(
            fencing, decision if decision.renewed_at else FenceDecision(renewed_at=self._ran_at)
        )
        self._poll_s = _POLL_TURNS * fencing.renew_s
        self._gap_s = max(_POLL_TURNS * self._poll_s, _MIN_GAP_S)

    def tick(self) -> float:
        """Do what is due now; return the latest time for the next call."""
        now = self._now()
        self._act(self._core.tick(now))
        return min(self._core.next_at(now), now + self._poll_s)

    def on_heartbeat(self, began: float, is_superseded: bool) -> None:
        """Handle a heartbeat whose write began at `began`, or the takeover by another start of the job."""
        now = self._now()
        self._act(self._core.superseded(now) if is_superseded else self._core.beat(began, now))

    def _now(self) -> float:
        """Return the time for the core, and notify it if this process was suspended.

        A gap between two calls means that neither the agent nor its heartbeat process ran.
        """
        now = self._clock()
        if now > self._ran_at + self._gap_s:
            self._core.resumed(now)
        self._ran_at = now
        return now

    def _act(self, actions: list[Action]) -> None:
        """Publish the decision, then carry it out."""
        self._publish(self._core.decision)
        for action in actions:
            if action is Action.STOP:
                self._processes.stop()
            elif action is Action.CONTINUE:
                self._processes.resume()
            elif self._processes.exist():
                self._core.killed(self._clock())
                self._publish(self._core.decision)
                self._processes.kill()


class _ScannedProcesses:
    """The user's processes below a guard and its supervisor; see `FencedProcesses`."""

    def __init__(self, guard_name: str, guard_pid: int, shared_memory: SharedMemory) -> None:
        self._scan = UserProcessScan(os.getsid(0), guard_name)
        self._guard_pid, self._shared_memory = guard_pid, shared_memory

    def exist(self) -> bool:
        """See `FencedProcesses.exist`."""
        return bool(self._scan.below(self._roots()))

    def stop(self) -> None:
        """See `FencedProcesses.stop`."""
        self._scan.stop(self._roots())

    def resume(self) -> None:
        """See `FencedProcesses.resume`."""
        self._scan.resume(self._roots())

    def kill(self) -> object:
        """See `FencedProcesses.kill`."""
        return self._scan.kill(self._roots())

    def _roots(self) -> list[int]:
        """Return the processes whose descendants are scanned: the supervisor, and the guard while it is alive."""
        supervisor = self._shared_memory.supervisor()
        return [self._guard_pid, supervisor] if os.getppid() == self._guard_pid else [supervisor]


class FencingAgent:
    """Fencing agent's process, which runs a `Fencer`; `run` returns when the guard and supervisor are dead."""

    def __init__(self, config: FencingConfig, shared_memory: SharedMemory, guard_pid: int, lifeline: int) -> None:
        self._config, self._lifeline = config, lifeline
        self._processes = _ScannedProcesses(config.guard_name, guard_pid, shared_memory)
        decision, publish = shared_memory.decision(), shared_memory.publish
        self._fencer = Fencer(config.fencing, decision, self._processes, publish, since_boot)
        self._poll = select.poll()
        self._poll.register(lifeline, select.POLLIN)
        self._heartbeats = -1
        self._heartbeat_pid = 0
        self._heartbeat_at = since_boot()

    def run(self) -> None:
        """Watch until the guard and supervisor are dead; blocking."""
        while True:
            if not self._heartbeat_pid and since_boot() >= self._heartbeat_at:
                self._start_heartbeat()
            until = self._fencer.tick()
            if not self._heartbeat_pid:
                until = min(until, self._heartbeat_at)
            ready = self._poll.poll(1000.0 * max(0.0, until - since_boot()) + 1.0)
            for descriptor, _ in ready:
                if descriptor == self._lifeline:
                    self._end_all()
                    return
                self._receive()

    def _receive(self) -> None:
        """Handle reports from the heartbeat process; restart it after a delay if it has ended."""
        raw = os.read(self._heartbeats, _READ_BYTES)
        if not raw:
            self._poll.unregister(self._heartbeats)
            os.close(self._heartbeats)
            os.waitpid(self._heartbeat_pid, 0)
            self._heartbeat_pid, self._heartbeat_at = 0, since_boot() + self._config.fencing.renew_s
        for began, is_superseded in unpack_heartbeats(raw):
            self._fencer.on_heartbeat(began, is_superseded)

    def _start_heartbeat(self) -> None:
        self._heartbeats, out = os.pipe()
        agent = os.getpid()
        self._heartbeat_pid = os.fork()
        if self._heartbeat_pid == 0:
            try:
                _become_heartbeat_process(self._config, agent, out)
            finally:
                os._exit(1)
        os.close(out)
        self._poll.register(self._heartbeats, select.POLLIN)

    def _end_all(self) -> None:
        """End the user's processes: nothing supervises them any more, and nothing would resume the stopped ones."""
        self._processes.kill()
        sweep(TOKEN_NAME, [f"{self._config.token}.{self._config.rank}"], {os.getpid(), self._heartbeat_pid})
        send_signal(self._heartbeat_pid, signal.SIGKILL)


def _become_heartbeat_process(config: FencingConfig, agent: int, out: int) -> None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != agent:
        return
    set_process_name("windlass-beat")
    HeartbeatProcess(config.job_folder, config.rank, config.incarnation, config.fencing.renew_s, out).run()
