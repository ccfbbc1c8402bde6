"""Chain of jobs, as managed by the leader of one link: the links after it, and the links before it.

Two links are kept queued after the running one, so that a link that dies before it can queue another still has a
successor. If the scheduler refuses a request, that is noted and retried; it never stops the work.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from windlass.core.errors import PreconditionError
from windlass.record import events
from windlass.record.causes import Cause, cause_of
from windlass.record.retry import Decision, end_of_chain
from windlass.record.state import Attempt, TaskFacts, jobs_to_let_go
from windlass.supervise.chain.background_calls import Answer, BackgroundCalls, ImmediateCalls
from windlass.supervise.chain.requests import UNCERTAIN, PastLinkQuery, QueueLinksRequest
from windlass.supervise.chain.scheduler import JobScheduler, PastLink, SchedulerError
from windlass.supervise.fencing.fence import HeartbeatWatch, heartbeat_path, read_heartbeats
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.messages import Journal, ReplicaStatus
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.job_listing import mark_of

__all__ = ["LinkManager", "scheduler_of"]

_NUM_AHEAD = 2
_AGAIN_AFTER_S = 60.0
_LOOK_EVERY_S = 600.0
"""Interval of checks for queued links, which a scheduler may lose with its state; a shorter one would load it."""
_LATER_S = 5.0
_PAST_EVERY_S = 0.5
_NUM_MISSED = 3
"""Number of heartbeats that must be missing even if the scheduler reports that the job is over."""

_NUM_ASKED = 4
_QUICK_S = 0.5
"""If a call takes longer than this, the signal in question did not interrupt it."""

_WHY_EVERY_S = 1.0
_WHY_OPEN = frozenset({Cause.UNKNOWN, Cause.CANCELLED})

_JOB_EVERY_S = 20.0
_SETTLE_S = 20.0
"""Time limit for a pending call when the link ends; the same as for other calls at that time."""

_NODE_CAUSES = frozenset({Cause.NODE_LOST, Cause.NODE_UNHEALTHY})


class LinkManager:
    """Manager of all requests from one link to its scheduler, on behalf of the leader.

    While an attempt may run, nothing here waits for the scheduler, except two seconds after a notice; at the end of the
    link each call is limited to 20 s.

    Args:
        incarnation: this start of the job.
        calls: executes calls of the scheduler.
        scheduler, read: replacements for the job's scheduler and for `read_heartbeats`, for a simulation.
    """

    def __init__(
        self,
        job: JobDocument,
        job_folder: Path,
        incarnation: Incarnation,
        journal: Journal,
        *,
        calls: BackgroundCalls | None = None,
        scheduler: JobScheduler | None = None,
        read: Callable[[Path, str], Mapping[str, bytes]] = read_heartbeats,
    ) -> None:
        self._job, self._folder, self._incarnation, self._journal = job, job_folder, incarnation, journal
        self._scheduler = scheduler or scheduler_of(job, incarnation.link)
        self._calls = calls or ImmediateCalls()
        self._watch = HeartbeatWatch(job_folder, incarnation.name, job.site.fencing.quiet_s, read)
        self._settled = HeartbeatWatch(job_folder, incarnation.name, _NUM_MISSED * job.site.fencing.renew_s, read)
        self._past: tuple[Cause, str, bool] | None = None
        self._past_at = float("-inf")
        self._queued: dict[int, str] = {}
        self._next_at = self._look_at = 0.0
        self._job_at, self._is_job_over = float("-inf"), False
        self._why: tuple[Cause, str] | None = None
        self._why_at, self._is_why_sure = 0.0, False
        self._noted: set[str] = set()
        self._released_at: dict[str, float] = {}
        self._has_begun = self._has_looked = False

    @property
    def _can_queue(self) -> bool:
        return self._job.chain.mode == "successor" and self._job.chain.can_submit

    def of_gang(self) -> dict[str, Any]:
        """Return this link's settings, as keyword arguments for the gang's config."""
        per_job_s = self._job.queue.time_s or self._job.settings.per_job_s
        began_at = self._incarnation.began_at
        return {
            "incarnation": self._incarnation.name,
            "link": self._ordinal(),
            "max_links": self._job.chain.num_links,
            "ends_at": self._incarnation.ends_at or (began_at + per_job_s if per_job_s else 0.0),
            "notice_s": self._job.site.notice_s,
        }

    def _ordinal(self) -> int:
        """Return the number of this link, counted over all jobs of the task; each requeued start counts."""
        number = self._incarnation.link
        if self._job.chain.mode == "requeue":
            number += int(self._incarnation.name.partition(".")[2] or 0)
        return self._journal.task().num_links_begun(self._job.job) + number

    @property
    def helpers(self) -> set[int]:
        """Return the pids of the processes that are calling the scheduler."""
        return self._calls.helpers

    def close(self) -> None:
        """Abandon the pending call."""
        self._calls.settle(0.0)

    # --- next links --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record that this link began, unless that is recorded already."""
        known = self._journal.task().jobs.get(self._job.job)
        link = known.links.get(self._incarnation.link) if known is not None else None
        if link is None or link.incarnation != self._incarnation.name:
            self._journal.append(
                events.LINK_STARTED,
                job=self._job.job,
                link=self._incarnation.link,
                backend_id=self._incarnation.job_id,
                incarnation=self._incarnation.name,
                host=os.uname().nodename,
            )

    def after_last(self, task: TaskFacts) -> Decision | None:
        """Return how the task ends if its chain has no link left; None while there is one."""
        return end_of_chain(task, self._ordinal(), self._job.chain.num_links)

    def queue_next(self, now: float) -> bool:
        """Request the next link.

        Return whether the request is settled. The link after that is requested some seconds later.

        A refused request is settled too; it is repeated while the work continues.
        """
        if not self._has_begun:
            self.begin()
            self._has_begun = True
            self._next_at, self._look_at = now + _LATER_S, now + _LOOK_EVERY_S
            self._ensure(self._incarnation.link + 1)
        return not self._calls.is_pending

    def tick(self, now: float) -> None:
        """Queue missing links; a refused request is repeated after a minute.

        A link that waits for another task or for an open attempt also queues links, since it may end while it waits.
        """
        if not self._has_begun:
            self.queue_next(now)
        self._release_evaluations(now)
        if now < self._next_at or self._calls.is_pending:
            return
        self._next_at = now + _AGAIN_AFTER_S
        is_look = now >= self._look_at
        if is_look:
            self._look_at = now + _LOOK_EVERY_S
        self._ensure(self._incarnation.link + _NUM_AHEAD, is_look=is_look)

    def _ensure(self, last: int, *, is_look: bool = False, calls: BackgroundCalls | None = None) -> None:
        """Queue the missing links after this one, up to `last`.

        Args:
            is_look: first ask which queued links still exist.
        """
        if not self._has_looked:
            known = self._journal.task().jobs[self._job.job].links
            self._queued = {**{link: found.backend_id for link, found in known.items()}, **self._queued}
        links = range(self._incarnation.link + 1, last + 1)
        wanted = tuple(link for link in links if self._can_queue and self._is_wanted(link))
        if is_look or any(link not in self._queued for link in wanted):
            assert self._scheduler is not None  # a job with an incarnation has a scheduler
            avoided = tuple(sorted(self._journal.task().avoided))
            request = QueueLinksRequest(self._scheduler, is_look, wanted, frozenset(self._queued), avoided)
            (calls or self._calls).send(request.run, self._on_queued)

    def _is_wanted(self, link: int) -> bool:
        most = self._job.chain.num_links
        return not most or self._ordinal() + link - self._incarnation.link <= most

    def _on_queued(self, answer: Answer) -> None:
        if answer["seen"] is not None:
            self._queued = {int(link): found for link, found in answer["seen"].items()}
            self._has_looked = True
        for link, found in answer["queued"].items():
            self._queued[int(link)] = found
            self._journal.append(events.LINK_QUEUED, job=self._job.job, link=int(link), backend_id=found)
        for note in answer["notes"]:
            self._note(note)

    def cancel_rest(self) -> None:
        """Cancel the links queued after this one when the task has ended.

        A failure is only noted, since a link that is not needed exits by itself.
        """
        if self._scheduler is None:
            return
        self._calls.settle(_SETTLE_S)
        try:
            waiting = [found for link, found in self._scheduler.queued().items() if link != self._incarnation.link]
            self._scheduler.cancel(waiting)
        except SchedulerError as error:
            self._note(f"cannot cancel queued links, which will exit by themselves: {error}")

    def release_dependents(self) -> None:
        """Release held jobs of tasks that run after this one, which has ended."""
        if self._scheduler is None:
            return
        self._journal.refresh()
        waiting = jobs_to_let_go(self._journal.facts)
        try:
            self._scheduler.let_go([job.backend_id for job in waiting.values()])
        except SchedulerError as error:
            self._note(f"cannot release {', '.join(waiting)} (`windlass ps --reconcile` does it): {error}")

    def _release_evaluations(self, now: float) -> None:
        """Release held jobs that evaluate this task's checkpoints, once there is one; this never waits for the scheduler."""
        facts, scheduler = self._journal.facts, self._scheduler
        rules = (task.evaluates for task in facts.tasks.values())
        if (
            scheduler is None
            or self._calls.is_pending
            or all(rule is None or rule.of != self._job.task for rule in rules)
        ):
            return
        found = [
            job.backend_id for name, job in jobs_to_let_go(facts).items() if facts.task(name).evaluates is not None
        ]
        due = [each for each in found if now >= self._released_at.get(each, 0.0)]
        if not due:
            return
        self._released_at.update(dict.fromkeys(due, now + _LOOK_EVERY_S))

        def release() -> Answer:
            try:
                scheduler.let_go(due)
            except SchedulerError as error:
                return {"problem": str(error)}
            return {"problem": ""}

        def on_released(answer: Answer) -> None:
            if answer["problem"]:
                self._released_at.update(dict.fromkeys(due, now + _AGAIN_AFTER_S))
                self._note(f"cannot release the job that evaluates checkpoints, retrying: {answer['problem']}")

        self._calls.send(release, on_released)

    def leave(self) -> None:
        """Prepare the next link: exclude failed nodes, and requeue the job if the site uses requeues."""
        if self._scheduler is None:
            return
        self._calls.settle(_SETTLE_S)
        self._ensure(self._incarnation.link + 1, is_look=True, calls=ImmediateCalls())
        self._avoid_bad_nodes()
        if self._job.chain.mode == "requeue":
            try:
                self._scheduler.requeue()  # ends everything that is left of this start
            except SchedulerError as error:
                self._note(f"cannot requeue the job: {error}")

    def end_job(self) -> None:
        """Cancel this job at the very end if a replica was lost: its step would wait for that replica until the walltime.

        The step does not end by itself if a node died and came back before the scheduler noticed, or lost its job's daemon.
        """
        newest = self._journal.task().newest_attempt
        end = newest.end if newest is not None else None
        was_lost = end is not None and (end.needs_new_job or cause_of(end.cause) in _NODE_CAUSES)
        if self._scheduler is None or not was_lost or self._job.num_replicas == 1:
            return
        try:
            own = self._scheduler.queued().get(self._incarnation.link)
            self._scheduler.cancel([own] if own else [])
        except SchedulerError as error:
            self._note(f"cannot end the job, which may hold its nodes until its walltime ends: {error}")

    def _avoid_bad_nodes(self) -> None:
        assert self._scheduler is not None
        task = self._journal.task()
        ends = [attempt.end for attempt in task.attempts.values() if attempt.end is not None]
        counts = Counter(end.host for end in ends if end.host and cause_of(end.cause) in _NODE_CAUSES)
        bad = [host for host, count in counts.items() if count >= self._job.chain.exclude_after]
        for host in sorted(set(bad) - set(task.avoided)):
            self._journal.append(events.NODE_AVOIDED, host=host, reason=f"{counts[host]} attempts were lost on it")
        if bad:
            try:
                waiting = [found for link, found in self._queued.items() if link > self._incarnation.link]
                self._scheduler.avoid(waiting, sorted({*bad, *task.avoided}))
            except SchedulerError as error:
                self._note(f"cannot exclude {', '.join(bad)} from queued links: {error}")

    # --- earlier links --------------------------------------------------------------------------------------

    def check_open_attempt(self, attempt: int, now: float) -> tuple[Cause, str] | None:
        """Return how an attempt of an earlier start ended, once nothing of it can still run; None until then.

        If the scheduler reports the end of its job, all of the job's nodes have confirmed it, except lost ones.
        """
        found = self._journal.task().attempts[attempt]
        reason = f"waits until attempt {attempt} of link {found.link} is certainly over"
        if reason not in self._noted:
            self._noted.add(reason)
            self._journal.append(events.TASK_QUEUED, job=self._job.job, reason=reason)
        is_quiet, is_settled = self._watch.look(now), self._settled.look(now)
        if not is_settled:
            return None
        self._ask_about_open_attempt(found, is_quiet, now)
        if self._past is None or not self._past[2]:
            return None
        cause, message, _ = self._past
        if cause in (Cause.UNKNOWN, Cause.OK):
            return Cause.UNKNOWN, "its job ended without recording a result"
        return cause, message

    def first_silent(self, attempt: int) -> int:
        """Return the rank whose heartbeat stopped well before all others in an earlier attempt; -1 if unknown.

        After a lost node the scheduler ends the whole job, some time after the node stopped responding.
        """
        found = self._journal.task().attempts[attempt]
        place = self._folder.with_name(f"{self._job.task}-{found.job}") / found.incarnation
        times = {}
        for rank in found.replicas:
            with contextlib.suppress(OSError):
                times[rank] = os.stat(str(heartbeat_path(place, rank))).st_mtime
        first = min(times, key=times.__getitem__, default=-1)
        others = [at for rank, at in times.items() if rank != first]
        is_clear = bool(others) and min(others) - times[first] > _NUM_MISSED * self._job.site.fencing.renew_s
        return first if is_clear else -1

    def _ask_about_open_attempt(self, attempt: Attempt, is_quiet: bool, now: float) -> None:
        """Ask how the attempt's job ended and, unless its heartbeats have stopped, whether that is certain."""
        known = None if self._past is None or is_quiet else self._past
        is_waited_for = known is not None and known[0] in UNCERTAIN  # repeated until its heartbeats stop
        if self._calls.is_pending or is_waited_for or now < self._past_at or (self._past is not None and self._past[2]):
            return
        self._past_at = now + _PAST_EVERY_S
        job_id, _, restart = attempt.incarnation.partition(".")
        if self._scheduler is None or not job_id:
            self._past = (Cause.UNKNOWN, "", is_quiet)
        elif job_id == self._incarnation.job_id:  # the scheduler's reply for this id is not about the earlier start
            self._past = (*self._end_of_earlier_start(attempt, restart), is_quiet)
        else:
            recorded = None if known is None else (str(known[0]), known[1])
            question = PastLinkQuery(self._scheduler, self._past_link(attempt, job_id), is_quiet, recorded)
            self._calls.send(question.run, self._on_past)

    def _past_link(self, attempt: Attempt, job_id: str) -> PastLink:
        """Return the link that ran an attempt: one of this job, or of an earlier job of the task."""
        job = self._journal.task().jobs.get(attempt.job)
        is_own = attempt.job == self._job.job
        mark = self._job.chain.mark if is_own else mark_of(job.token) if job is not None else ""
        name = self._job.queue.name if is_own else self._name_of_job(attempt.job)
        link = self._link_of(attempt)
        began_at = job.links[link].started_at if job is not None and link else attempt.started_at
        return PastLink(job_id, began_at, mark, name, link)

    def _name_of_job(self, number: int) -> str:
        with contextlib.suppress(OSError, PreconditionError):
            return JobDocument.read(self._folder.with_name(f"{self._job.task}-{number}") / "job.json").queue.name
        return ""

    def _link_of(self, attempt: Attempt) -> int:
        """Return the link that began an attempt; 0 if unknown, as for a restarted link."""
        job = self._journal.task().jobs.get(attempt.job)
        links = job.links.items() if job is not None else ()
        return next((number for number, link in links if link.incarnation == attempt.incarnation), 0)

    def _end_of_earlier_start(self, attempt: Attempt, restart: str) -> tuple[Cause, str]:
        own = self._incarnation
        if attempt.job != self._job.job or self._link_of(attempt) not in (0, own.link):
            return Cause.KILLED, f"Slurm forgot its job, and gave the id {own.job_id} to the job of link {own.link}"
        if self._incarnation.is_unknown_restart:
            return Cause.KILLED, f"Slurm forgot start {restart} of its job, and started the job again"
        # Slurm restarts a job by itself only after it lost a node; a preempted job received a notice.
        return Cause.NODE_LOST, f"start {restart} of its job ended without recording a result"

    def _on_past(self, answer: Answer) -> None:
        self._past = (Cause(answer["cause"]), answer["message"], answer["is_certain"])

    def is_job_over(self, now: float) -> bool:
        """Return whether the scheduler has reported the end of this job; it is asked every 20 s, in the background.

        For a leader that would not be signalled, because the daemon that signals its processes is dead.
        """
        if self._scheduler is not None and not self._is_job_over and now >= self._job_at and not self._calls.is_pending:
            self._job_at = now + _JOB_EVERY_S
            self._calls.send(self._ask_job, self._on_job)
        return self._is_job_over

    def _ask_job(self) -> Answer:
        assert self._scheduler is not None
        try:
            return {"is_over": self._scheduler.is_over()}
        except SchedulerError:  # asked again later
            return {"is_over": False}

    def _on_job(self, answer: Answer) -> None:
        self._is_job_over = answer["is_over"]

    def explain(self, status: ReplicaStatus, now: float) -> ReplicaStatus:
        """Add the scheduler's explanation to a notice; ask at once, and again if the reply may be incomplete."""
        if self._why is None:
            self._why = self._explain_notice()
            self._why_at = now + _WHY_EVERY_S
        elif self._is_why_open and now >= self._why_at and not self._calls.is_pending:
            self._why_at = now + _WHY_EVERY_S
            self._calls.send(self._ask_why, self._on_why)
        cause, message = self._why
        if cause is Cause.UNKNOWN:
            assumed = Cause.WALLTIME if "SIGUSR1" in status.notice else Cause.PREEMPTED
            cause = Cause.KILLED if self._is_job_over else assumed  # no notice arrived: Slurm no longer knows the job
        return replace(status, notice=message or status.notice, notice_cause=str(cause))

    @property
    def _is_why_open(self) -> bool:
        """Return whether the reason for the notice is still unclear: unknown, or a user who may not be the cause."""
        return not self._is_why_sure and self._why is not None and self._why[0] in _WHY_OPEN

    def _ask_why(self) -> Answer:
        assert self._scheduler is not None
        try:
            cause, message = self._scheduler.explain_notice(has_time=True)
        except SchedulerError:
            cause, message = Cause.UNKNOWN, ""
        return {"cause": str(cause), "message": message}

    def _on_why(self, answer: Answer) -> None:
        cause = Cause(answer["cause"])
        if cause is not Cause.UNKNOWN:
            self._why, self._is_why_sure = (cause, answer["message"]), True

    def _explain_notice(self) -> tuple[Cause, str]:
        """Return the scheduler's explanation; repeat the query, since the signal may also hit the program that asks."""
        assert self._scheduler is not None
        why, begin = (Cause.UNKNOWN, ""), time.monotonic()
        for _ in range(_NUM_ASKED):
            with contextlib.suppress(SchedulerError):
                why = self._scheduler.explain_notice()
            if why[0] is not Cause.UNKNOWN or time.monotonic() > begin + _QUICK_S:
                break  # the code needs the rest of the notice to save
        return why

    def _note(self, message: str) -> None:
        if message not in self._noted:
            self._noted.add(message)
            with contextlib.suppress(OSError):  # informational: a full disk is reported elsewhere
                self._journal.append(events.NOTE, message=message)


def scheduler_of(job: JobDocument, link: int = 0) -> JobScheduler | None:
    """Return the scheduler of a job's chain; None for a job that runs as one process tree.

    Args:
        link: number of the link that asks; 0 if unknown.
    """
    if job.chain.scheduler == "beaker":
        from windlass.supervise.beaker.scheduler import BeakerScheduler  # lazy: as below

        return BeakerScheduler()
    if job.chain.scheduler != "slurm":
        return None
    from windlass.supervise.slurm.scheduler import SlurmScheduler  # lazy: local jobs never need it

    return SlurmScheduler(job, link=link)
