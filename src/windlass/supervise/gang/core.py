"""Pure core of a gang's leader: gathers the replicas, starts and ends them together, and retries.

    wait --gate opens--> gather(n) --all ready--> run(n) --first failure, or requested--> stop(n) --all ended--+
                            ^                       |all succeeded                                             |
                            |                       v                                                          v
                            +---- next attempt -- decide <------------------------------------------------ attempt ended

A notice that a node must be released ends the attempt and the job; the next job, or this one after a restart by its
scheduler, continues.

All durable state is in the journal, so a new leader (a restarted supervisor, or another replica after this node was
lost) continues from there. No I/O except the journal; events carry the time.
"""

from __future__ import annotations

from windlass.record import events
from windlass.record.causes import EXIT_RESUMABLE, Cause, cause_of
from windlass.record.retry import decide, end_of_chain
from windlass.record.state import Attempt, End, State, TaskFacts
from windlass.supervise.gang import outcome
from windlass.supervise.gang.config import GangConfig
from windlass.supervise.gang.membership import LOST_AFTER_S, Membership
from windlass.supervise.gang.messages import (
    Command,
    HandOver,
    JournalView,
    Leave,
    Order,
    Release,
    ReplicaStatus,
    Respawn,
    SendOrder,
    Step,
    StopLevel,
)
from windlass.supervise.gang.open_attempts import is_of_other_start, newest_open_attempt, open_processes
from windlass.supervise.gang.outcome import end_of, failures, first_failure, host_of
from windlass.supervise.gang.walltime import Deadlines

__all__ = ["GangConfig", "GangCore"]

SETTLE_S = 0.3
"""Time to wait for other failures after the first report, so that the earliest failure is named as the cause.

In a scheduler's job also the time to wait for a notice, since the code may be signalled just before the supervisors.
"""

CHECKPOINT_WAIT_S = 600.0
"""Time that `stop --checkpoint` gives code that polls `should_stop`, before SIGTERM."""


class GangCore:
    """Core of the leader of one task: all decisions, without input or output.

    Args:
        epoch: number of this leader; orders and records of a lower one are ignored.
        now: monotonic time.
        wall: wall time at `now`.
    """

    def __init__(self, gang: GangConfig, *, epoch: int, journal: JournalView, now: float, wall: float) -> None:
        self.order = Order(epoch=epoch)
        self._gang = gang
        self._journal = journal
        self.membership = Membership(gang.num_replicas, now)
        self._attempt_end: End | None = None
        self._phase_at = now
        self._settle_at = self._term_at = self._kill_at = self._give_up_at = 0.0
        self._reason = ""
        self._evaluates: dict[str, str | int] = {}
        self._is_over = self._is_gate_open = self._is_superseded = self._has_notice = False
        self.open_attempt = 0
        self._wall_offset = wall - now
        self._deadlines = Deadlines(
            per_job_s=gang.per_job_s,
            ends_at=gang.ends_at,
            time_s=gang.time_s,
            grace_s=gang.grace_s,
            wall_offset=self._wall_offset,
        )

    @property
    def is_over(self) -> bool:
        """Return whether the task has ended, or this job has nothing left to do for it."""
        return self._is_over

    @property
    def is_settling(self) -> bool:
        """Return whether the next tick is needed within `SETTLE_S`."""
        return self.order.step is Step.RUN and self._settle_at > 0

    @property
    def is_waiting(self) -> bool:
        """Return whether the gate (upstream tasks, resources) must be checked."""
        return self.order.step is Step.WAIT and not self._is_over

    def start(self, now: float) -> list[Command]:
        """Read the state of the task from the journal, and continue from it."""
        task = self._journal.task()
        over = self._leave_if_over(task)
        if over:
            return over
        newest = task.newest_attempt
        if newest is None:
            return self._set(now, attempt=1, step=Step.WAIT)
        self.open_attempt = newest_open_attempt(task, self._gang.incarnation)
        if self.open_attempt:
            return self._set(now, attempt=newest.number + 1, step=Step.WAIT)
        if newest.end is not None:
            return self._follow(newest, now)
        if newest.job != self._gang.job:
            end = End(str(Cause.UNKNOWN), message="its job ended without recording a result", at=newest.last_seen_at)
            self._end_attempt(newest.number, end, newest.job)
            return self._set(now, attempt=newest.number + 1, step=Step.WAIT)
        self.membership.miss_all(now)
        self._deadlines.start(min(now, newest.started_at - self._wall_offset), task.attempts.values())
        return self._set(now, attempt=newest.number, step=Step.RUN, **outcome.order_of_running(newest))

    def on_gate(self, reason: str, now: float, evaluates: dict[str, str | int] | None = None) -> list[Command]:
        """Handle the gate's result: why the task may not start yet, or "" and the checkpoint to evaluate, if any."""
        if not self.is_waiting:
            return []
        if reason != self._reason:
            self._reason = reason
            self._journal.append(events.TASK_QUEUED, job=self._gang.job, reason=reason)
        if reason:
            return []
        self._is_gate_open, self._evaluates = True, evaluates or {}
        return self._set(now, step=Step.GATHER)

    def on_open_attempt_over(self, cause: Cause, message: str, now: float, rank: int = -1) -> list[Command]:
        """Record the end of an earlier start's attempt that is certainly over.

        Args:
            rank: replica whose heartbeat stopped well before all others, so that its node was lost; -1 if none.
        """
        if cause is Cause.UNKNOWN and rank >= 0:
            cause = Cause.NODE_LOST
        task = self._journal.task()
        attempt, self.open_attempt = task.attempts[self.open_attempt], 0
        is_ended = attempt.end is not None
        for number, other in open_processes(task, self._gang.incarnation):
            left = End(
                str(cause), rank=other, message="its end was not recorded: all processes of this replica had died"
            )
            self._journal.append(events.PROCESS_ENDED, attempt=number, rank=other, end=left.to_data())
        if is_ended:
            return self._follow(attempt, now)
        rank = 0 if self._gang.num_replicas == 1 else rank
        host = host_of(attempt, rank) if cause is Cause.NODE_LOST else ""
        end = End(str(cause), rank=rank if host else -1, host=host, message=message, at=attempt.last_seen_at)
        self._end_attempt(attempt.number, end, attempt.job)
        return self._go_on(now)

    def _follow(self, attempt: Attempt, now: float) -> list[Command]:
        """Continue after an attempt that had already ended; if an earlier job ran it, with a new attempt."""
        if attempt.job == self._gang.job:
            return self._go_on(now)
        return self._set(now, attempt=self._journal.task().next_attempt, step=Step.WAIT)

    def on_superseded(self, now: float) -> list[Command]:
        """Handle a restart of the job on other nodes: end everything that this start began."""
        if self._is_superseded or self._is_over:
            return []
        self._is_superseded = True
        if self.order.step is Step.WAIT:
            return self._leave(EXIT_RESUMABLE)
        commands = self._stop(Cause.NODE_LOST, "a later start of this job took over", now)
        self._term_at = self._kill_at = now
        return commands + self._await_stop(now)

    def on_verdict(self, verdict: State, cause: str, message: str, now: float) -> list[Command]:
        """End the task from the gate: an upstream task or the environment failed, or all evaluations are over."""
        return self._end_task(verdict, cause, message, now)

    def on_status(self, status: ReplicaStatus, now: float) -> list[Command]:
        """Handle a replica's status; an unchanged one costs little, since big gangs send hundreds a second."""
        return self._advance(now) if self.membership.on_status(status, now) else []

    def on_disconnected(self, rank: int, now: float) -> list[Command]:
        """Handle a broken connection to a replica, which has some time to reconnect."""
        self.membership.on_disconnected(rank, now)
        return []

    def on_tick(self, now: float) -> list[Command]:
        """Check requests, deadlines, and missing replicas."""
        if self._is_over:
            return []
        self.membership.miss_silent(now)
        task = self._journal.task()
        commands = self._leave_if_over(task) or self._catch_up(task, now)
        if commands:
            return commands
        commands = self._check_open_attempt(task, now) or self._handle_requests(task, now) + self._watch_deadlines(now)
        if self.is_over:
            return commands
        return commands + self._advance(now) + self._respawn(now)

    # --- decisions of others ------------------------------------------------------------------------------

    def _leave_if_over(self, task: TaskFacts) -> list[Command]:
        """Leave a task that has ended or that a newer job took over."""
        if task.end is not None:
            return [Release(), *self._leave(0 if task.end[0] is State.SUCCEEDED else 1)]
        return self._leave(1) if task.newest_job > self._gang.job else []

    def _catch_up(self, task: TaskFacts, now: float) -> list[Command]:
        """Continue after an end that another leader recorded; an end that a client claims is not trusted."""
        attempt = task.attempts.get(self.order.attempt)
        if self.order.step is Step.WAIT or attempt is None or attempt.end is None or attempt.is_end_doubtful:
            return []
        return self._go_on(now)

    def _check_open_attempt(self, task: TaskFacts, now: float) -> list[Command]:
        """Continue once the leader of an earlier start has recorded the end of its attempt."""
        attempt = task.attempts.get(self.open_attempt)
        if (
            attempt is None
            or attempt.end is None
            or attempt.is_end_doubtful
            or newest_open_attempt(task, self._gang.incarnation)
        ):
            return []
        self.open_attempt = 0
        return self._follow(attempt, now)

    # --- requests and deadlines -------------------------------------------------------------------------------

    def _handle_requests(self, task: TaskFacts, now: float) -> list[Command]:
        if not task.is_stop_wanted:
            return []
        if self.order.step is Step.WAIT:
            return self._end_task(State.STOPPED, str(Cause.CANCELLED), task.stop_reason, now)
        is_asking = task.is_checkpoint_wanted
        return self._stop(Cause.CANCELLED, task.stop_reason, now, wait_s=CHECKPOINT_WAIT_S if is_asking else 0.0)

    def _watch_deadlines(self, now: float) -> list[Command]:
        attempts = self._journal.task().attempts.values()
        if self.order.step is Step.WAIT:
            return self._end_if_time_is_over(now) or self._leave_if_too_short(now)
        due = self._deadlines.due(now, is_listening=self._is_listening(), attempts=attempts)
        return self._stop(due.cause, due.message, now, wait_s=due.wait_s) if due is not None else []

    def _end_if_time_is_over(self, now: float) -> list[Command]:
        if not self._deadlines.is_time_over(self._journal.task().attempts.values()):
            return []
        return self._end_task(State.FAILED, str(Cause.TIMEOUT), self._deadlines.time_message, now)

    def _leave_if_too_short(self, now: float) -> list[Command]:
        """Leave the link if its scheduler will end it soon, so that the next link waits instead."""
        return self._leave_link(self._journal.task(), now) if self._deadlines.is_link_too_short(now) else []

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
        if self.membership.notice() is not None:
            return self._handle_notice(now)
        ended = self.membership.ended(number)
        missing = sorted(set(range(self._gang.num_replicas)) - self.membership.ready(number) - ended.keys())
        if missing:
            if now < self._phase_at + self._gang.ready_timeout_s:
                return []
            names = ", ".join(str(rank) for rank in missing)
            message = f"replica {names} of {self._gang.num_replicas} not ready after {self._gang.ready_timeout_s:g} s"
            return self._stop(Cause.NEVER_READY, message, now, rank=missing[0])
        if ended:
            return self._run(now)
        return self._start_attempt(number, now)

    def _start_attempt(self, number: int, now: float) -> list[Command]:
        """Start the attempt once all replicas are ready, after checking the journal again."""
        self._journal.refresh()
        task = self._journal.task()
        commands = self._leave_if_over(task) or self._catch_up(task, now) or self._handle_requests(task, now)
        if commands:
            return commands
        statuses = self.membership.statuses
        leader = statuses[0]
        self._journal.append(
            events.ATTEMPT_STARTED,
            job=self._gang.job,
            attempt=number,
            epoch=self.order.epoch,
            leader=leader.host,
            address=leader.address,
            port=leader.port,
            link=self._gang.link,
            incarnation=self._gang.incarnation,
            **({"evaluates": self._evaluates} if self._evaluates else {}),
        )
        self._deadlines.start(now, task.attempts.values())
        hosts = ",".join(f"{status.host}={status.address}" for _, status in sorted(statuses.items()))
        named = {"evaluates": self._evaluates.get("path", ""), "evaluated_step": self._evaluates.get("step", -1)}
        return self._set(now, step=Step.RUN, address=leader.address, port=leader.port, hosts=hosts, **named)

    def _run(self, now: float) -> list[Command]:
        ended = self.membership.ended(self.order.attempt)
        if outcome.have_heads_succeeded(ended, self._gang.num_heads):
            return self._dismiss_workers(ended, now)
        bad = failures(ended, self._gang.num_heads)
        lost = self.membership.lost(now)
        if self.membership.notice() is not None:
            return self._handle_notice(now)  # the scheduler may have signalled the code too
        if bad:
            self._settle_at = self._settle_at or now + SETTLE_S
            may_have_notice = bool(self._gang.incarnation) or len(ended) < self._gang.num_replicas
            if may_have_notice and now < self._settle_at:
                return []
            first = first_failure(bad)
            return self._stop(cause_of(first.cause), first.message, now, end=first)
        if lost:
            end = outcome.end_of_lost(
                self.membership, lost[0], self._host(lost[0]), is_scheduled=bool(self._gang.incarnation)
            )
            return self._stop(cause_of(end.cause), end.message, now, end=end)
        if len(ended) == self._gang.num_replicas:
            return self._finish(End(str(Cause.OK)), now)
        return []

    def _host(self, rank: int) -> str:
        """Return a replica's host, even if only an earlier leader knew it; "" if unknown."""
        return self.membership.host(rank) or host_of(self._journal.task().attempts.get(self.order.attempt), rank)

    def _dismiss_workers(self, ended: dict[int, End], now: float) -> list[Command]:
        """After the heads have succeeded, end the workers, which have nothing to save."""
        if len(ended) == self._gang.num_replicas:
            return self._finish(End(str(Cause.OK)), now)
        self._attempt_end = End(str(Cause.OK))
        self._term_at = self._kill_at = now
        self._give_up_at = now + LOST_AFTER_S
        return self._set(now, step=Step.STOP, level=StopLevel.KILL, cause=str(Cause.OK))

    def _handle_notice(self, now: float) -> list[Command]:
        """Request a checkpoint if there is time, and end the attempt before the scheduler kills it."""
        first = self.membership.notice()
        assert first is not None  # checked by the callers
        self._has_notice = True
        end, wait_s = end_of(first, self.membership, self.order.attempt, self._host), 0.5 * self._gang.notice_s
        commands = self._stop(cause_of(end.cause), first.notice, now, rank=end.rank, host=end.host, wait_s=wait_s)
        if self._gang.incarnation:
            self._kill_at = min(self._kill_at, now + 0.8 * self._gang.notice_s)
            self._term_at = min(self._term_at, self._kill_at)
        return commands

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
        """Stop the attempt in steps: request, signal, kill.

        A second reason, or a repeated one without a wait, does not replace the first but shortens the wait.
        """
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
        checkpoint = self.order.checkpoint + (1 if wait_s else 0)
        commands = self._set(now, step=Step.STOP, level=level, cause=why, checkpoint=checkpoint)
        return commands + self._await_stop(now)

    def _await_stop(self, now: float) -> list[Command]:
        number = self.order.attempt
        ended = self.membership.ended(number)
        if len(set(ended).union(self.membership.lost(now))) == self._gang.num_replicas or now >= self._give_up_at:
            if len(ended) == self._gang.num_replicas and all(end.cause == Cause.OK for end in ended.values()):
                return self._finish(End(str(Cause.OK)), now)
            return self._finish(self._first_end(ended), now)
        is_killing = now >= self._kill_at or outcome.are_heads_over(ended, self._gang.num_heads)
        level = StopLevel.KILL if is_killing else StopLevel.TERM if now >= self._term_at else StopLevel.ASK
        if level > self.order.level:
            return self._set(now, level=level)
        return []

    def _first_end(self, ended: dict[int, End]) -> End:
        """Return why the attempt is over.

        A replica that failed earlier may have reported later than the one for which the attempt was stopped.
        """
        noticed = self.membership.notice() if self._has_notice else None
        if noticed is not None:  # the scheduler may have explained the notice since then
            return end_of(noticed, self.membership, self.order.attempt, self._host)
        if self._attempt_end in ended.values():
            return first_failure([end for end in ended.values() if end.cause != Cause.OK])
        return self._attempt_end or End(str(Cause.UNKNOWN))

    def _is_listening(self) -> bool:
        """Return whether this attempt's code polls `should_stop`, so that it can save before a signal."""
        attempt = self._journal.task().attempts.get(self.order.attempt)
        return attempt is not None and attempt.is_listening

    def _finish(self, end: End, now: float) -> list[Command]:
        if not is_of_other_start(self._journal.task().attempts.get(self.order.attempt), self._gang.incarnation):
            self._end_attempt(self.order.attempt, end)
        return self._go_on(now)

    def _end_attempt(self, number: int, end: End, job: int = 0) -> None:
        self._journal.append(
            events.ATTEMPT_ENDED, job=job or self._gang.job, attempt=number, epoch=self.order.epoch, end=end.to_data()
        )

    def _go_on(self, now: float) -> list[Command]:
        """Continue after the end of an attempt; a new leader passes the gate before the next attempt."""
        task = self._journal.task()
        newest = task.newest_attempt
        is_taken_over = is_of_other_start(newest, self._gang.incarnation) and newest is not None and newest.end is None
        if self._is_superseded or is_taken_over:
            return self._leave(EXIT_RESUMABLE)  # a later start of the job decides and queues the next links
        decision = decide(task, self._gang.budgets)
        if decision.verdict is not None:
            return self._end_task(decision.verdict, decision.cause, decision.message, now)
        over = self._end_if_time_is_over(now)
        if over:
            return over
        if self._must_leave(task, now):
            return self._leave_link(task, now)
        self._attempt_end, self._settle_at, self._has_notice = None, 0.0, False
        self._deadlines.clear()
        self._is_gate_open = self._is_gate_open and not self._gang.is_evaluating
        attempt, step = task.next_attempt, Step.GATHER if self._is_gate_open else Step.WAIT
        return self._set(now, attempt=attempt, step=step, level=StopLevel.NONE, cause="", address="", port=0)

    def _must_leave(self, task: TaskFacts, now: float) -> bool:
        """Return whether the next attempt needs the next link: after a notice or a lost node, or if time is short."""
        if self._is_superseded or self.membership.notice() is not None:
            return True
        newest = task.newest_attempt
        if not self._gang.incarnation or newest is None or newest.end is None:
            return False
        was_gathered_here = not newest.started_at and self._is_gate_open
        is_ours = newest.incarnation == self._gang.incarnation or was_gathered_here
        if is_ours and outcome.ends_link(newest.end):
            return True
        return self._deadlines.is_link_too_short(now)

    def _leave_link(self, task: TaskFacts, now: float) -> list[Command]:
        """Leave the rest of the work to the next link; after the last link, end the task."""
        last = end_of_chain(task, self._gang.link, self._gang.max_links)
        if last is not None and last.verdict is not None and not self._is_superseded:
            return self._end_task(last.verdict, last.cause, last.message, now)
        return [HandOver(), *self._leave(EXIT_RESUMABLE)]

    def _end_task(self, verdict: State, cause: str, message: str, now: float) -> list[Command]:
        attempt = self._journal.task().newest_attempt
        if self.open_attempt and attempt is not None and attempt.end is None:  # no link waits for it any more
            end = End(str(Cause.UNKNOWN), message="its job ended without recording a result", at=attempt.last_seen_at)
            self._end_attempt(attempt.number, end, attempt.job)
        self._journal.append(
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
        self.order = self.order.but(deadline=self._deadlines.wall(), **changes)
        return [SendOrder(self.order)]

    def _respawn(self, now: float) -> list[Command]:
        """Restart missing supervisors: immediately while replicas first gather, later after a delay."""
        if not self._gang.can_respawn or self.order.step is not Step.GATHER:
            return []
        return [Respawn(rank) for rank in self.membership.due_for_respawn(now)]
