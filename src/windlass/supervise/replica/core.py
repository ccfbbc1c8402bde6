"""Pure core of one replica: follows the leader's orders, and starts user code at most once per attempt.

    idle --gather(n)--> ready(n) --run(n)--> started(n) --exit--> ended(n) --gather(n+1)--> ready(n+1) ...

The record `process-starting` is on disk before the user's process is forked, and the process waits behind a gate
until `process-started` is on disk. So a restarted supervisor knows from its journal whether an attempt ever began, and
never starts it again. No I/O except the journal; events carry the time.
"""

from __future__ import annotations

from dataclasses import replace

from windlass.record import events
from windlass.record.causes import EXIT_RESUMABLE, Cause
from windlass.record.state import End, State
from windlass.supervise.gang.messages import (
    Command,
    JournalView,
    KillTree,
    Leave,
    OpenGate,
    Order,
    Phase,
    ReplicaStatus,
    SendStatus,
    SignalProcess,
    Spawn,
    Step,
    StopLevel,
    WriteControl,
)
from windlass.supervise.gang.stragglers import StepTimer

__all__ = ["ReplicaCore"]


class ReplicaCore:
    """Core of one replica: all decisions, without input or output.

    Args:
        rank: this replica's number within the gang.
        grace_s: seconds between SIGTERM and SIGKILL, also counted while the leader does not respond.
        incarnation: start of the job that the replica belongs to; it does not own processes of other starts.

    Attributes:
        unfit: problem with this node; if set, every attempt ends with this message.
    """

    def __init__(
        self,
        rank: int,
        *,
        job: int,
        host: str,
        address: str,
        grace_s: float,
        journal: JournalView,
        incarnation: str = "",
    ) -> None:
        self.rank = rank
        self.job = job
        self.phase = Phase.IDLE
        self.attempt = 0
        self.order = Order(epoch=0)
        self.end: End | None = None
        self.notice = self.unfit = ""
        self.step_timer = StepTimer()
        self._host, self._address, self._port = host, address, 0
        self._grace_s = grace_s
        self._journal = journal
        self._incarnation = incarnation
        self._level = StopLevel.NONE
        self._kill_at = 0.0
        self._stall: End | None = None
        self._has_process = False

    def restore(self) -> int:
        """Continue where an earlier supervisor of this replica stopped.

        Returns:
            The attempt whose process (alive or not) the shell must look for, or 0.
        """
        for number in sorted(self._journal.task().attempts, reverse=True):
            replica = self._journal.task().attempts[number].replicas.get(self.rank)
            if replica is None or replica.incarnation != self._incarnation:
                continue
            if not (replica.is_starting or replica.end):
                continue
            self.attempt, self.end = number, replica.end
            self.phase = Phase.ENDED if replica.end else Phase.STARTED
            self._has_process = replica.end is None
            return 0 if replica.end else number
        return 0

    def status(self) -> ReplicaStatus:
        """Return this replica's status, for the leader."""
        return ReplicaStatus(
            rank=self.rank,
            attempt=self.attempt,
            phase=self.phase,
            host=self._host,
            address=self._address,
            port=self._port,
            end=self.end,
            notice=self.notice,
            step_s=self.step_timer.step_s,
        )

    def needs_port(self, order: Order) -> bool:
        """Return whether `on_order` needs a port for a new attempt."""
        return order.step in (Step.GATHER, Step.RUN) and order.attempt > self.attempt

    def on_order(self, order: Order, now: float, port: int) -> list[Command]:
        """Follow the leader's newest order; `port` is a free port on this host, if `needs_port`."""
        if order.epoch < self.order.epoch:
            return []
        self.order = order
        if order.step is Step.LEAVE:
            return [*self._clear(), Leave(order.code)]
        if order.step is Step.WAIT or order.attempt < self.attempt:
            return [SendStatus(self.status())]
        if order.step is Step.STOP:
            return self._stop(order, now)
        if order.attempt > self.attempt:
            if self._has_process:
                return self._clear()
            self._become_ready(order.attempt, port)
        if order.step is Step.RUN and self.phase is Phase.READY:
            return self._start(order)
        return [SendStatus(self.status())]

    def on_spawned(self, process: str, argv: list[str]) -> list[Command]:
        """Record the process that waits behind its gate, then open the gate."""
        self._journal.append(
            events.PROCESS_STARTED, attempt=self.attempt, rank=self.rank, host=self._host, process=process, argv=argv
        )
        self.phase = Phase.STARTED
        return [OpenGate(), SendStatus(self.status())]

    def on_spawn_failed(self, end: End) -> list[Command]:
        """Handle the failure to execute the user's command."""
        return self.on_ended(end)

    def on_ended(self, end: End) -> list[Command]:
        """Handle the end of the user's processes, after their log is complete."""
        if self.phase is Phase.ENDED:
            return [SendStatus(self.status())]
        if self._stall is not None:
            end = replace(self._stall, tail=end.tail, traceback=end.traceback)
        self._journal.append(events.PROCESS_ENDED, attempt=self.attempt, rank=self.rank, end=end.to_data())
        self.phase, self.end, self._has_process, self._stall = Phase.ENDED, end, False, None
        return [SendStatus(self.status())]

    def on_stalled(self, end: End) -> list[Command]:
        """Kill everything because of a stall or another problem; `end` says which."""
        if self.phase is not Phase.STARTED or self._stall is not None:
            return []
        self._stall = end
        self._level = StopLevel.KILL
        return [KillTree()]

    def on_alone(self) -> list[Command]:
        """Leave if the leader is gone because the task ended; the journal view must show the whole run."""
        task = self._journal.task()
        if task.end is None and task.newest_job <= self.job:
            return []
        return [*self._clear(), Leave(0 if task.end is not None and task.end[0] is State.SUCCEEDED else 1)]

    def on_superseded(self) -> list[Command]:
        """Leave, because the job was restarted and this start's leader is gone."""
        return [*self._clear(), Leave(EXIT_RESUMABLE)]

    def on_notice(self, reason: str) -> list[Command]:
        """Pass a notice (a signal to the supervisor) to the leader, which decides for the gang."""
        self.notice = reason
        return [SendStatus(self.status())]

    def on_tick(self, now: float) -> list[Command]:
        """Kill the user's processes after the grace period."""
        if self._kill_at and now >= self._kill_at and self._level < StopLevel.KILL and self.phase is Phase.STARTED:
            self._level = StopLevel.KILL
            return [KillTree()]
        return []

    def _become_ready(self, attempt: int, port: int) -> None:
        self.attempt, self.phase, self.end, self._port = attempt, Phase.READY, None, port
        self._level, self._kill_at, self._stall = StopLevel.NONE, 0.0, None
        if self.unfit:
            self.phase = Phase.ENDED
            self.end = End(str(Cause.NODE_UNHEALTHY), rank=self.rank, host=self._host, message=self.unfit)
        self.step_timer = StepTimer()

    def _start(self, order: Order) -> list[Command]:
        self._journal.append(
            events.PROCESS_STARTING, attempt=self.attempt, rank=self.rank, incarnation=self._incarnation
        )
        self.phase, self._has_process = Phase.STARTED, True
        return [Spawn(self.attempt, order.address, order.port)]

    def _stop(self, order: Order, now: float) -> list[Command]:
        if order.attempt > self.attempt or self.phase in (Phase.IDLE, Phase.READY):
            if self._has_process:
                return self._clear()
            self.attempt, self.phase = order.attempt, Phase.ENDED
            self.end = End(
                str(Cause.SIBLING_FAILED), rank=self.rank, host=self._host, message="stopped before it started"
            )
        if self.phase is Phase.ENDED or order.level <= self._level:
            return [SendStatus(self.status())]
        self._level = order.level
        if order.level is StopLevel.ASK:
            return [WriteControl(True, order.checkpoint, order.cause, order.deadline)]
        if order.level is StopLevel.TERM:
            self._kill_at = now + self._grace_s
            return [WriteControl(True, order.checkpoint, order.cause, order.deadline), SignalProcess()]
        return [KillTree()]

    def _clear(self) -> list[Command]:
        return [KillTree()] if self._has_process else []
