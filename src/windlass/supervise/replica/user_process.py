"""User's process of one replica: started behind its gate, logged, watched, and ended with all its children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Callable

from windlass.core.clock import Clock
from windlass.core.process import ProcessId, identify, is_alive, send_signal
from windlass.record.causes import Cause
from windlass.record.redact import Redactor
from windlass.record.state import End
from windlass.supervise.fencing.fence import FenceState
from windlass.supervise.fencing.guard import GuardContext
from windlass.supervise.job import JobDocument
from windlass.supervise.logs.pump import LogPump
from windlass.supervise.replica.classify import Evidence, classify
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.memory import OomWatch, proportional_bytes
from windlass.supervise.replica.process_tree import below, end_all, resident_bytes, sweep
from windlass.supervise.replica.spawn import Child, spawn
from windlass.supervise.replica.termination import parent_of, targets_of

__all__ = ["UserProcess", "sweep_left_overs"]

_STATUS_WAIT_S = 2.0
_DISK_FULL_PATIENCE_S = 10.0
_NO_ROOM_BYTES = 64 * 1024
_NUM_LINES = 200
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_WEIGH_SHARE = 10.0
"""Limit for measuring memory, which is slow for big processes: one part in `_WEIGH_SHARE` of the time."""


class UserProcess:
    """User's process of one attempt on this node; methods block only if documented."""

    def __init__(
        self,
        job: JobDocument,
        rank: int,
        attempt: int,
        context: GuardContext,
        redactor: Redactor,
        clock: Clock,
        host: str,
    ) -> None:
        self.attempt = attempt
        self._job, self._rank, self._context, self._clock, self._host = job, rank, context, clock, host
        log = Path(job.paths.run_dir) / "logs" / str(attempt) / job.task / f"{rank}.log"
        self._pump = LogPump(context.log_pipe, log, redactor, clock)
        self._child: Child | None = None
        self._process: ProcessId | None = None
        self._code: int | None = None
        self._exited_at = 0.0  # when the exit was seen; ending its tree and reading its log takes a while
        self._oom_watch = OomWatch(is_contained=bool(job.container.image))
        self._memory_note = ""
        self._weigh_at = 0.0
        self._blocked_since = 0.0
        self._terminated: list[ProcessId] = []

    @property
    def is_blocked(self) -> bool:
        """Return whether the log cannot be written because the disk is full."""
        return self._blocked_since > 0

    def spawn(self, argv: list[str], env: Mapping[str, str]) -> str:
        """Fork the user's process behind its gate; return its identity. Raises OSError if the fork fails."""
        cwd = "/" if self._job.container.image else self._job.command.cwd
        self._child = spawn(argv, env, cwd, self._context.log_pipe.write_fd)
        self._process = ProcessId.parse(self._child.process)
        return self._child.process

    def open_gate(self) -> str:
        """Let the process execute its command; return why it could not, or ""."""
        assert self._child is not None
        return self._child.open_gate()

    def adopt(self, process: str) -> None:
        """Take over a process that an earlier supervisor started; it may be gone."""
        self._process = ProcessId.parse(process) if process else None

    def has_exited(self) -> bool:
        """Return whether the root process is gone; if it is, store its exit code."""
        if not self._exited_at and self._is_over():
            self._exited_at = self._clock.now()
        return bool(self._exited_at)

    def _is_over(self) -> bool:
        if self._code is None and self._process is None:
            self._code = -int(signal.SIGKILL)
        if self._code is not None:
            return True
        assert self._process is not None
        if self._reap():
            return True
        return parent_of(self._process.pid) != os.getpid() and self._has_exited_elsewhere()

    def _reap(self) -> bool:
        """Reap dead children, orphans included; return whether the root process is dead."""
        assert self._process is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self._process.pid:
                self._context.note_exit(pid, status)
                self._code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return self._code is not None

    def _has_exited_elsewhere(self) -> bool:
        """Return whether the root process, now the guard's child, is dead.

        If it is, store the exit code that the guard recorded.
        """
        assert self._process is not None
        if is_alive(self._process):
            return False
        deadline = time.monotonic() + _STATUS_WAIT_S
        while time.monotonic() < deadline:
            codes = self._context.exit_codes()
            if self._process.pid in codes:
                self._code = codes[self._process.pid]
                return True
            time.sleep(0.01)
        self._code = -int(signal.SIGKILL)
        return True

    def terminate(self) -> None:
        """Send SIGTERM to the user's process, or to the children of windlass's shell around it."""
        if self._process is None or not is_alive(self._process):
            return
        root = self._process.pid
        targets = targets_of(root, is_shell=self._job.command.is_shell)
        self._terminated = [found for found in map(identify, targets) if found is not None]
        for pid in targets:
            self._terminate(pid)

    def insist(self) -> None:
        """Repeat the SIGTERM for a shell that started its next command after the first one ended."""
        if self._process is None or not self._terminated or any(is_alive(found) for found in self._terminated):
            return
        self._terminated = []
        if is_alive(self._process):
            self._terminate(self._process.pid)

    def _terminate(self, pid: int) -> None:
        """Send SIGTERM, and SIGCONT so that it is delivered.

        A process stopped by the fencing agent receives it when it continues.
        """
        send_signal(pid, signal.SIGTERM)
        if self._context.decision().state is not FenceState.STOPPED:
            send_signal(pid, signal.SIGCONT)

    def kill(self, keep: Callable[[], set[int]]) -> list[int]:
        """Send SIGKILL to the process and everything that it started; blocks until all are dead, at most ten seconds.

        Args:
            keep: returns processes below this one that are not the user's; slow, so only called if there are any processes.

        Returns:
            Processes that are still alive: they cannot be signalled, or hang in the kernel.
        """
        self._end_container()
        left = end_all(self._roots(), keep, is_empty=self._has_no_children)
        if os.getppid() != self._context.guard_pid:  # the dead guard's adopted orphans are not below this process
            roots = [str(self._process)] if self._process is not None else []
            sweep_left_overs(self._job, self._rank, self._context, roots)
        deadline = time.monotonic() + _STATUS_WAIT_S
        while not self.has_exited() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._job.container.image:
            _sweep_containers(self._job, self._rank)
        return left

    def _has_no_children(self) -> bool:
        """Return whether it is certain that no user process is left: this process adopts orphans, and has no child.

        Orphans of an earlier supervisor are children of the guard, so this proves nothing for a later one.
        """
        if not self._context.is_first:
            return False
        if self._process is not None:
            self._reap()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        return False

    def _end_container(self) -> None:
        """Kill the container's processes.

        The container's client then writes the rest of the output and exits by itself.
        """
        if not self._job.container.image or self.has_exited():
            return
        from windlass.supervise.container.engine import ContainerEngine  # lazy: seldom needed

        engine = ContainerEngine(self._job.container.engine, self._job.container.variables)
        engine.signal(f"{self._job.token}.{self._rank}", "KILL")
        deadline = time.monotonic() + _STATUS_WAIT_S
        while not self.has_exited() and time.monotonic() < deadline:
            self.pump()
            time.sleep(0.01)

    def pump(self) -> bool:
        """Move output to the log; return False while the disk is full."""
        result = self._pump.pump()
        if not result.is_blocked:
            self._blocked_since = 0.0
        elif not self._blocked_since:
            self._blocked_since = self._clock.monotonic()
        return not result.is_blocked

    def _roots(self) -> list[int]:
        """Return the processes that adopt the user's orphans."""
        return [os.getpid(), self._context.guard_pid] if os.getppid() == self._context.guard_pid else [os.getpid()]

    def trouble(self, now: float, others: Callable[[], set[int]]) -> End | None:
        """Return how the process ends if it must end now: memory over the limit, or a disk that stays full.

        Args:
            others: returns guards and supervisors of other replicas, whose memory does not count.
        """
        if self._process is not None:
            self._oom_watch.look_at(self._process.pid, now)
        if self._blocked_since and now > self._blocked_since + _DISK_FULL_PATIENCE_S:
            return self._end_of(Cause.DISK_FULL, "no space left on device for the log")
        if self._job.shape.memory_bytes and not self._job.container.image:
            return self._too_much_memory(now, others)
        return None

    def _too_much_memory(self, now: float, others: Callable[[], set[int]]) -> End | None:
        """Compare memory with the limit: first a cheap sum that overcounts shared pages, then the exact sum."""
        limit, pids = self._job.shape.memory_bytes, below(self._roots(), others())
        if resident_bytes(pids) <= limit or now < self._weigh_at:
            return None
        used = proportional_bytes(pids)
        self._weigh_at = now + _WEIGH_SHARE * (self._clock.monotonic() - now)
        if used <= limit:
            return None
        self._memory_note = f"used {used / 2**20:.1f} MiB of memory, the limit is {limit / 2**20:g} MiB"
        return self._end_of(Cause.OUT_OF_MEMORY, self._memory_note)

    def end(self, *, finish: tuple[int, str, str] | None, stop_cause: str) -> End:
        """Complete the log, and classify how the process ended; the whole tree must be gone."""
        result = self._pump.drain(self._clock.monotonic() - 1.0)
        lines = tuple(self._pump.last_lines(_NUM_LINES))
        self._pump.close()
        code = -int(signal.SIGKILL) if self._code is None else self._code
        evidence = Evidence(
            stop_cause=stop_cause,
            fenced=self._why_fenced(),
            finish=finish,
            was_out_of_memory=self._oom_watch.has_struck(),
            memory_note=self._memory_note,
            was_disk_full=result.is_blocked
            or _has_no_room(self._job.paths.out)
            or _has_no_room(self._job.paths.checkpoints),
            lines=lines,
        )
        at = self._exited_at or self._clock.now()
        end = classify(code, evidence, rank=self._rank, host=self._host, at=at)
        is_build_at_fault = self._job.command.builds and end.cause == Cause.USER_ERROR
        return replace(end, cause=str(Cause.DATA_FAILED)) if is_build_at_fault else end

    def _why_fenced(self) -> str:
        """Return why the fencing agent killed this process, or ""."""
        started_at = self._process.start_ticks / _TICKS_PER_S if self._process is not None else 0.0
        return self._context.decision().why_killed(started_at)

    def stopped_by_signal(self) -> bool:
        """Return whether the root process is stopped (state T, SIGSTOP)."""
        if self._process is None:
            return False
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False
        return stat.rpartition(b")")[2].split()[0] == b"T"

    def _end_of(self, cause: Cause, message: str) -> End:
        return End(str(cause), rank=self._rank, host=self._host, message=message, at=self._clock.now())


def sweep_left_overs(job: JobDocument, rank: int, context: GuardContext, roots: Iterable[str]) -> list[int]:
    """Kill what an earlier guard and supervisor of this replica left on this machine when they were killed.

    Args:
        roots: recorded identities of the replica's user processes.
    """
    if job.container.image:
        _sweep_containers(job, rank)
    return sweep(TOKEN_NAME, [f"{job.token}.{rank}"], {os.getpid(), context.guard_pid}, roots=roots)


def _sweep_containers(job: JobDocument, rank: int) -> None:
    from windlass.supervise.container.engine import ContainerEngine  # lazy: seldom needed

    ContainerEngine(job.container.engine, job.container.variables).sweep(job.token, rank)


def _has_no_room(folder: str) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < _NO_ROOM_BYTES
