"""The pure core of a gang's leader: gathers the replicas, starts them together, ends them together, tries again.

    wait --gate opens--> gather(n) --all ready--> run(n) --first bad end, or asked--> stop(n) --all ended--+
                            ^                       |all ended well                                        |
                            |                       v                                                      v
                            +---- next attempt -- decide <-------------------------------------------- attempt ended

A node that was told to go (a notice) ends the attempt and with it the job: the next job, or this one started again
by its scheduler, goes on.

Everything durable is in the journal, so a new leader (a restarted supervisor, or another replica after this one's
node was lost) continues from the facts. No I/O here but the ledger; time comes in with the events.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.record import events
from windlass.record.causes import EXIT_RESUMABLE, Cause, Kind, cause_of, kind_of
from windlass.record.retry import Budgets, decide
from windlass.record.state import Attempt, End, State, Task
from windlass.supervise.messages import (
    Command,
    Leave,
    Ledger,
    Order,
    Phase,
    Release,
    Respawn,
    SendOrder,
    Status,
    Step,
    StopLevel,
)

__all__ = ["Gang", "GangCore"]

LOST_AFTER_S = 15.0
"""A replica whose connection has been gone for so long is lost; a restart by its guard takes under 5 s."""

SILENT_AFTER_S = 240.0
"""A connection without a word for so long counts as gone; a shared disk may hold a supervisor up for three minutes."""

_HELD_UP_S = 5.0
"""A leader that has not ticked for so long was held up itself: what it did not hear says nothing."""

SETTLE_S = 0.3
"""After the first bad end, wait so long for others, so that the earliest is named and not the quickest reporter."""

CHECKPOINT_WAIT_S = 600.0
"""`stop --checkpoint` waits so long for code that said it listens, before SIGTERM."""

RESPAWN_AFTER_S = 5.0


@dataclass(frozen=True)
class Gang:
    """What the leader needs to know of the job.

    Attributes:
        per_job_s: walltime of an attempt: the one that follows in the same job has as much again, in place of the
            next job of a chain. A leader that takes over goes on counting.
        time_s: running time of the task, all its attempts together; the time between them does not count.
    """

    job: int
    num_replicas: int
    budgets: Budgets = Budgets()
    ready_timeout_s: float = 600.0
    grace_s: float = 30.0
    per_job_s: float | None = None
    time_s: float | None = None
    can_respawn: bool = False


class GangCore:
    """Decides for one task of a run, in the supervisor that leads.

    Args:
        epoch: this leader's number; orders and records of a lower one lose.
        now: monotonic time.
        wall: wall time at `now`.
    """

    def __init__(self, gang: Gang, *, epoch: int, ledger: Ledger, now: float, wall: float) -> None:
        self.order = Order(epoch=epoch)
        self._gang = gang
        self._ledger = ledger
        self._statuses: dict[int, Status] = {}
        self._seen: dict[int, float] = {}
        self._lost_at: dict[int, float] = {}
        self._respawned_at: dict[int, float] = {}
        self._attempt_end: End | None = None
        self._phase_at = self._ticked_at = now
        self._settle_at = self._term_at = self._kill_at = self._give_up_at = 0.0
        self._reason = ""
        self._is_over = self._is_gate_open = False
        self._job_deadline = self._time_deadline = 0.0
        self._wall_offset = wall - now

    @property
    def is_over(self) -> bool:
        """Whether the task ended, or this job has nothing to do with it any more."""
        return self._is_over

    @property
    def is_settling(self) -> bool:
        """Whether a tick within `SETTLE_S` matters."""
        return self.order.step is Step.RUN and self._settle_at > 0

    @property
    def is_waiting(self) -> bool:
        """Whether the gate (upstream tasks, resources) must be looked at."""
        return self.order.step is Step.WAIT and not self._is_over

    def start(self, now: float) -> list[Command]:
        """Find out from the journal where the task stands and go on from there."""
        task = self._ledger.task()
        over = self._leave_if_over(task)
        if over:
            return over
        newest = task.newest_attempt
        if newest is None:
            return self._set(now, attempt=1, step=Step.WAIT)
        if newest.end is not None:
            if newest.job == self._gang.job:
                return self._go_on(now)
            return self._set(now, attempt=newest.number + 1, step=Step.WAIT)
        if newest.job != self._gang.job:
            end = End(str(Cause.NODE_LOST), message="its job ended without a word", at=newest.last_seen_at)
            self._end_attempt(newest.number, end, newest.job)
            return self._set(now, attempt=newest.number + 1, step=Step.WAIT)
        self._lost_at = dict.fromkeys(range(self._gang.num_replicas), now)  # until they report to this leader
        self._set_deadlines(min(now, newest.started_at - self._wall_offset))
        return self._set(now, attempt=newest.number, step=Step.RUN, address=newest.address, port=newest.port)

    def on_gate(self, reason: str, now: float) -> list[Command]:
        """The gate's word: why the task may not start yet, or an empty string when it may."""
        if not self.is_waiting:
            return []
        if reason != self._reason:
            self._reason = reason
            self._ledger.append(events.TASK_QUEUED, job=self._gang.job, reason=reason)
        if reason:
            return []
        self._is_gate_open = True
        return self._set(now, step=Step.GATHER)

    def on_upstream_failed(self, name: str, now: float) -> list[Command]:
        """A task this one comes after ended without success; this one never starts."""
        return self._end_task(
            State.FAILED, str(Cause.SIBLING_FAILED), f"task {name}, which it comes after, did not succeed", now
        )

    def on_status(self, status: Status, now: float) -> list[Command]:
        """A replica's state arrived."""
        self._statuses[status.rank] = status
        self._seen[status.rank] = now
        self._lost_at.pop(status.rank, None)
        return self._advance(now)

    def on_disconnected(self, rank: int, now: float) -> list[Command]:
        """The connection to a replica broke; it has some time to come back."""
        self._lost_at.setdefault(rank, now)
        return []

    @property
    def absent(self) -> list[int]:
        """Replicas that are not connected now and may come, or come back."""
        return [rank for rank in range(self._gang.num_replicas) if rank in self._lost_at or rank not in self._statuses]

    def on_gone(self, rank: int, now: float) -> list[Command]:
        """It is known of an absent replica that it has no living guard and supervisor: no waiting for it."""
        self._lost_at[rank] = min(self._lost_at.get(rank, now), now - LOST_AFTER_S)
        return []

    def on_tick(self, now: float) -> list[Command]:
        """Time passed: look at requests, deadlines, replicas that are missing."""
        if self._is_over:
            return []
        self._miss_the_silent(now)
        task = self._ledger.task()
        commands = self._leave_if_over(task) or self._catch_up(task, now)
        if commands:
            return commands
        commands = self._obey(task, now) + self._watch_deadlines(now)
        if self.is_over:
            return commands
        return commands + self._advance(now) + self._respawn(now)

    def _miss_the_silent(self, now: float) -> None:
        """Notice replicas that are gone without their connection telling: a node without power, a cable."""
        held_up_s = now - self._ticked_at
        self._ticked_at = now
        for rank, seen_at in self._seen.items():
            if held_up_s > _HELD_UP_S:
                self._seen[rank] = seen_at + held_up_s
            elif now >= seen_at + SILENT_AFTER_S:
                self._lost_at.setdefault(rank, now)

    # --- what others have decided ------------------------------------------------------------------------------

    def _leave_if_over(self, task: Task) -> list[Command]:
        """Leave a task that ended, by whomever's word, or that a newer job took over."""
        if task.end is not None:
            return [Release(), *self._leave(0 if task.end[0] is State.SUCCEEDED else 1)]
        return self._leave(1) if task.newest_job > self._gang.job else []

    def _catch_up(self, task: Task, now: float) -> list[Command]:
        """Go on from an end of the attempt that another leader recorded; a client's word waits for ours."""
        attempt = task.attempts.get(self.order.attempt)
        if self.order.step is Step.WAIT or attempt is None or attempt.end is None or attempt.is_end_doubtful:
            return []
        return self._go_on(now)

    # --- requests and deadlines -------------------------------------------------------------------------------

    def _obey(self, task: Task, now: float) -> list[Command]:
        if not task.is_stop_wanted:
            return []
        if self.order.step is Step.WAIT:
            return self._end_task(State.STOPPED, str(Cause.CANCELLED), task.stop_reason, now)
        is_asking = task.is_checkpoint_wanted
        return self._stop(Cause.CANCELLED, task.stop_reason, now, wait_s=CHECKPOINT_WAIT_S if is_asking else 0.0)

    def _watch_deadlines(self, now: float) -> list[Command]:
        if self.order.step is Step.WAIT:
            return self._end_if_time_is_over(now)
        if self._time_deadline and now >= self._time_deadline:
            return self._stop(Cause.TIMEOUT, self._time_message, now)
        if not self._job_deadline:
            return []
        margin = self._margin_s()
        if now < self._job_deadline - margin - self._gang_grace():
            return []
        return self._stop(Cause.WALLTIME, f"limit.per_job of {self._gang.per_job_s:g} s ends", now, wait_s=margin)

    def _margin_s(self) -> float:
        """Seconds before SIGTERM that code gets to save; measured save times would be better than this share."""
        return min(60.0, 0.1 * (self._gang.per_job_s or 0.0))

    def _wall_deadline(self) -> float:
        """When the first of the deadlines comes, as wall time for people and code; 0 for none."""
        first = min((at for at in (self._job_deadline, self._time_deadline) if at), default=0.0)
        return first + self._wall_offset if first else 0.0

    def _gang_grace(self) -> float:
        return min(self._gang.grace_s, 0.1 * (self._gang.per_job_s or 0.0))

    @property
    def _time_message(self) -> str:
        return f"limit.time of {self._gang.time_s:g} s is over"

    def _time_left_s(self) -> float:
        """What earlier attempts have left of limit.time."""
        used_s = sum(attempt.running_s for attempt in self._ledger.task().attempts.values())
        return (self._gang.time_s or 0.0) - used_s

    def _end_if_time_is_over(self, now: float) -> list[Command]:
        if not self._gang.time_s or self._time_left_s() > 0:
            return []
        return self._end_task(State.FAILED, str(Cause.TIMEOUT), self._time_message, now)

    def _set_deadlines(self, started_at: float) -> None:
        """The deadlines of an attempt that started then, on the monotonic clock."""
        if self._gang.time_s:
            self._time_deadline = started_at + self._time_left_s()
        if self._gang.per_job_s:
            self._job_deadline = started_at + self._gang.per_job_s

    # --- the attempt -------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        if self.order.step is Step.GATHER:
            return self._gather(now)
        if self.order.step is Step.RUN:
            return self._run(now)
        if self.order.step is Step.STOP:
            return self._await_stop(now)
        return []

    def _gather(self, now: float) -> list[Command]:
        number = self.order.attempt
        notice = next((s for s in self._statuses.values() if s.notice), None)
        if notice is not None:
            return self._stop(Cause.PREEMPTED, notice.notice, now, rank=notice.rank)
        here = {rank: status for rank, status in self._statuses.items() if rank not in self._lost_at}
        ready = [rank for rank, s in here.items() if s.attempt == number and s.phase is Phase.READY]
        missing = sorted(set(range(self._gang.num_replicas)) - set(ready) - self._ended(number).keys())
        if missing:
            if now < self._phase_at + self._gang.ready_timeout_s:
                return []
            names = ", ".join(str(rank) for rank in missing)
            message = f"replica {names} of {self._gang.num_replicas} not ready after {self._gang.ready_timeout_s:g} s"
            return self._stop(Cause.NEVER_READY, message, now, rank=missing[0])
        if self._ended(number):
            return self._run(now)
        return self._start_attempt(number, now)

    def _start_attempt(self, number: int, now: float) -> list[Command]:
        """All are ready: look at the journal once more, record the start, let them run."""
        task = self._ledger.task()
        commands = self._leave_if_over(task) or self._catch_up(task, now) or self._obey(task, now)
        if commands:
            return commands
        leader = self._statuses[0]
        self._ledger.append(
            events.ATTEMPT_STARTED,
            job=self._gang.job,
            attempt=number,
            epoch=self.order.epoch,
            leader=leader.host,
            address=leader.address,
            port=leader.port,
        )
        self._set_deadlines(now)
        return self._set(now, step=Step.RUN, address=leader.address, port=leader.port)

    def _run(self, now: float) -> list[Command]:
        ended = self._ended(self.order.attempt)
        bad = [end for end in ended.values() if end.cause != Cause.OK]
        lost = [rank for rank, since in self._lost_at.items() if now >= since + LOST_AFTER_S]
        notice = next((s for s in self._statuses.values() if s.notice), None)
        if bad:
            self._settle_at = self._settle_at or now + SETTLE_S
            if len(ended) < self._gang.num_replicas and now < self._settle_at:
                return []
            first = min(bad, key=_precedence)
            return self._stop(cause_of(first.cause), first.message, now, end=first)
        if lost:
            rank = min(lost)
            host = self._statuses[rank].host if rank in self._statuses else ""
            return self._stop(Cause.NODE_LOST, f"replica {rank} was lost", now, rank=rank, host=host)
        if notice is not None:
            return self._stop(Cause.PREEMPTED, notice.notice, now, rank=notice.rank)
        if len(ended) == self._gang.num_replicas:
            return self._finish(End(str(Cause.OK)), now)
        return []

    def _stop(
        self,
        cause: Cause,
        message: str,
        now: float,
        *,
        rank: int = -1,
        host: str = "",
        wait_s: float = 0.0,
        end: End | None = None,
    ) -> list[Command]:
        """Begin to stop the attempt; a second reason, or the same without a wait, does not replace it but hurries it."""
        if self.order.step is Step.STOP:
            if wait_s == 0.0:
                self._term_at = min(self._term_at, now)
                self._kill_at = min(self._kill_at, self._term_at + self._gang.grace_s)
                self._give_up_at = min(self._give_up_at, self._kill_at + LOST_AFTER_S)
            return []
        if wait_s and not self._is_listening():
            wait_s = 0.0
        self._attempt_end = end or End(str(cause), rank=rank, host=host, message=message)
        self._term_at = now + wait_s
        self._kill_at = self._term_at + self._gang.grace_s
        self._give_up_at = self._kill_at + LOST_AFTER_S
        level = StopLevel.ASK if wait_s else StopLevel.TERM
        why = str(Cause.SIBLING_FAILED) if end or rank >= 0 else str(cause)
        asked = self.order.checkpoint + (1 if wait_s else 0)
        commands = self._set(now, step=Step.STOP, level=level, cause=why, checkpoint=asked)
        return commands + self._await_stop(now)

    def _await_stop(self, now: float) -> list[Command]:
        number = self.order.attempt
        ended = self._ended(number)
        lost = [
            r for r in range(self._gang.num_replicas) if r in self._lost_at and now >= self._lost_at[r] + LOST_AFTER_S
        ]
        if len(set(ended) | set(lost)) == self._gang.num_replicas or now >= self._give_up_at:
            if len(ended) == self._gang.num_replicas and all(end.cause == Cause.OK for end in ended.values()):
                return self._finish(End(str(Cause.OK)), now)
            return self._finish(self._first_end(ended), now)
        level = StopLevel.KILL if now >= self._kill_at else StopLevel.TERM if now >= self._term_at else StopLevel.ASK
        if level > self.order.level:
            return self._set(now, level=level)
        return []

    def _first_end(self, ended: dict[int, End]) -> End:
        """Why the attempt is over; a replica that failed earlier may have been heard later than the one we stopped for."""
        if self._attempt_end in ended.values():
            return min((end for end in ended.values() if end.cause != Cause.OK), key=_precedence)
        return self._attempt_end or End(str(Cause.UNKNOWN))

    def _is_listening(self) -> bool:
        """Whether code of this attempt asked `should_stop` and so can save before it is signalled."""
        attempt = self._ledger.task().attempts.get(self.order.attempt)
        return attempt is not None and attempt.is_listening

    def _finish(self, end: End, now: float) -> list[Command]:
        self._end_attempt(self.order.attempt, end)
        return self._go_on(now)

    def _end_attempt(self, number: int, end: End, job: int = 0) -> None:
        self._ledger.append(
            events.ATTEMPT_ENDED, job=job or self._gang.job, attempt=number, epoch=self.order.epoch, end=end.to_data()
        )

    def _go_on(self, now: float) -> list[Command]:
        """What follows the attempt's end; a leader that came later passes the gate itself before the next one."""
        task = self._ledger.task()
        decision = decide(task, self._gang.budgets)
        if decision.verdict is not None:
            return self._end_task(decision.verdict, decision.cause, decision.message, now)
        if any(status.notice for status in self._statuses.values()):
            return self._leave(EXIT_RESUMABLE)
        over = self._end_if_time_is_over(now)
        if over:
            return over
        self._attempt_end, self._settle_at = None, 0.0
        self._job_deadline = self._time_deadline = 0.0
        return self._set(
            now,
            attempt=_next(task),
            step=Step.GATHER if self._is_gate_open else Step.WAIT,
            level=StopLevel.NONE,
            cause="",
            address="",
            port=0,
        )

    def _end_task(self, verdict: State, cause: str, message: str, now: float) -> list[Command]:
        attempt = self._ledger.task().newest_attempt
        self._ledger.append(
            events.TASK_ENDED,
            job=self._gang.job,
            attempt=attempt.number if attempt else 0,
            verdict=str(verdict),
            cause=cause,
            message=message,
        )
        return [Release(), *self._leave(0 if verdict is State.SUCCEEDED else 1)]

    def _leave(self, code: int) -> list[Command]:
        self._is_over = True
        self.order = self.order.but(step=Step.LEAVE, code=code)
        return [SendOrder(self.order), Leave(code)]

    def _set(self, now: float, **changes: object) -> list[Command]:
        if "step" in changes:
            self._phase_at = now
        self.order = self.order.but(deadline=self._wall_deadline(), **changes)
        return [SendOrder(self.order)]

    def _ended(self, number: int) -> dict[int, End]:
        return {
            rank: status.end
            for rank, status in sorted(self._statuses.items())
            if status.attempt == number and status.phase is Phase.ENDED and status.end is not None
        }

    def _respawn(self, now: float) -> list[Command]:
        """Start supervisors that are not there; at once in the first gathering, with patience later."""
        if not self._gang.can_respawn or self.order.step is not Step.GATHER:
            return []
        commands: list[Command] = []
        for rank in range(self._gang.num_replicas):
            is_here = rank in self._statuses and rank not in self._lost_at
            since = self._respawned_at.get(rank, now - RESPAWN_AFTER_S)
            if not is_here and now >= since + RESPAWN_AFTER_S:
                self._respawned_at[rank] = now
                commands.append(Respawn(rank))
        return commands


def _precedence(end: End) -> tuple[bool, float, int]:
    """The first failure is the cause; a replica that only heard of another's failure comes last."""
    return (end.cause == Cause.SIBLING_FAILED or kind_of(cause_of(end.cause)) is Kind.DONE, end.at, end.rank)


def _next(task: Task) -> int:
    newest: Attempt | None = task.newest_attempt
    return (newest.number if newest else 0) + 1
