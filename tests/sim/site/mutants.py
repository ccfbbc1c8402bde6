"""Policies of chains and fences broken on purpose, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.sim.cluster import Cluster
from tests.sim.site.slurm import VirtualSlurm
from windlass.launcher.reconcile import assessment, policy
from windlass.record.causes import Cause
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.fencing.agent import Fencer
from windlass.supervise.fencing.fence import Action, FencingAgentCore
from windlass.supervise.gang import core, open_attempts
from windlass.supervise.gang.core import GangCore
from windlass.supervise.gang.election import Claims
from windlass.supervise.gang.leader import Leader
from windlass.supervise.gang.messages import Phase
from windlass.supervise.gang.walltime import Deadlines
from windlass.supervise.replica.core import ReplicaCore
from windlass.supervise.slurm import scheduler
from windlass.supervise.slurm.job_listing import JobEnd
from windlass.supervise.slurm.scheduler import SlurmScheduler

if TYPE_CHECKING:
    from tests.sim.node import Node
    from tests.sim.site.job import SlurmLink
    from windlass.record.state import TaskFacts
    from windlass.supervise.gang.incarnation import Incarnation

__all__ = ["SITE_MUTANTS"]

Change = tuple[object, str, object]


def _successor_does_not_wait() -> list[Change]:
    """The next link takes for granted that everything of the one before is over."""
    return [(LinkManager, "check_open_attempt", lambda self, attempt, now: (Cause.NODE_LOST, "it must be over"))]


def _lost_replica_forgotten() -> list[Change]:
    """The next link does not wait for a replica that its leader had lost when it ended the attempt."""
    forgotten: Callable[[TaskFacts, str], list[tuple[int, int]]] = lambda task, incarnation: []  # noqa: E731
    return [(core, "open_processes", forgotten), (open_attempts, "open_processes", forgotten)]


def _superseded_start_goes_on() -> list[Change]:
    """Leader and replicas do not end when the scheduler has started the job anew."""
    return [
        (GangCore, "on_superseded", lambda self, now: []),
        (ReplicaCore, "on_superseded", lambda self: []),
        (core, "is_of_other_start", lambda attempt, incarnation: False),
    ]


def _link_file_not_checked() -> list[Change]:
    """A late duplicate of a link goes to work."""

    def enter(self: VirtualSlurm, link: SlurmLink, node: Node) -> Incarnation | None:
        self._first_by_link[link.job.folder, link.number] = str(link.id)
        return _ENTER(self, link, node)

    return [(VirtualSlurm, "_enter", enter)]


def _successor_not_queued() -> list[Change]:
    """A link queues nothing behind it."""
    return [(LinkManager, "_ensure", lambda self, *_, **__: None)]


def _waiting_link_queues_nothing() -> list[Change]:
    """A link that waits for another task queues its successor only when it need not wait any more."""

    def tick(self: LinkManager, now: float) -> None:
        if self._has_begun:
            _TICK(self, now)

    return [(LinkManager, "tick", tick), (GangCore, "_leave_if_too_short", lambda self, now: [])]


def _rest_not_cancelled() -> list[Change]:
    """Links that are queued stay so after the end of the task."""
    return [(LinkManager, "cancel_rest", lambda self: None)]


def _restore_of_another_start() -> list[Change]:
    """A replica takes over what a replica of another start of the job began."""

    def restore(self: ReplicaCore) -> int:
        for number in sorted(self._journal.task().attempts, reverse=True):
            replica = self._journal.task().attempts[number].replicas.get(self.rank)
            if replica is not None and (replica.is_starting or replica.end):
                self.attempt, self.end = number, replica.end
                self.phase = Phase.ENDED if replica.end else Phase.STARTED
                self._has_process = replica.end is None
                return 0 if replica.end else number
        return 0

    return [(ReplicaCore, "restore", restore)]


def _fencing_agent_never_stops() -> list[Change]:
    """Ranks that are cut off from the shared file system run on until it is time to kill them."""

    def tick(self: FencingAgentCore, now: float) -> list[Action]:
        return [action for action in _AGENT_TICK(self, now) if action is not Action.STOP]

    return [(FencingAgentCore, "tick", tick)]


def _superseded_leader_stays() -> list[Change]:
    """A leader is not told that another start of its job took over."""
    return [(Leader, "on_superseded", lambda self: None)]


def _fencing_agent_continues_superseded() -> list[Change]:
    """Ranks that were stopped go on when the file system is back, whoever has taken over meanwhile."""

    def on_heartbeat(self: Fencer, began: float, is_superseded: bool) -> None:
        _ON_HEARTBEAT(self, began, False)

    return [(Fencer, "on_heartbeat", on_heartbeat)]


def _deadline_ignored() -> list[Change]:
    """The leader does not look at the walltime."""
    return [(Deadlines, "due", lambda self, now, is_listening, attempts: None)]


def _claims_of_another_start_followed() -> list[Change]:
    """Whoever claimed last is the leader, of whatever start of the job."""

    def read_claims(self: Cluster, folder: str, incarnation: str = "") -> Claims:
        newest = _READ_CLAIMS(self, folder, incarnation).newest
        return Claims(newest, newest)

    return [(Cluster, "read_claims", read_claims)]


def _every_cancel_is_a_persons() -> list[Change]:
    """A job that the scheduler cancelled by itself is taken for one that a person cancelled."""
    judge: Callable[..., JobEnd] = lambda **_: JobEnd(Cause.CANCELLED, "it was cancelled")  # noqa: E731
    return [(scheduler, "end_of_cancelled", judge)]


def _abandoned_job_not_ended() -> list[Change]:
    """A job that waits for a task whose end nobody reports is left alone."""
    return [(SlurmScheduler, "end_this_start", lambda self: "")]


def _signs_of_life_ignored() -> list[Change]:
    """A job that the scheduler does not know is lost, though its replicas give signs of life."""
    blind: Callable[..., object] = lambda task, seen, *rest, **words: _RECONCILE(  # noqa: E731
        task, replace(seen, signs=""), *rest, **words
    )
    return [(assessment, "reconcile", blind)]


def _leftovers_called_gone() -> list[Change]:
    """Links that wait after the end of their task are called gone once they were told to go."""
    hasty: Callable[..., object] = lambda task, job, seen, now: (  # noqa: E731
        policy.RecordGone(job=job) if seen.waiting else _AFTER_END(task, job, seen, now)
    )
    return [(assessment, "after_end", hasty)]


_RECONCILE = policy.reconcile
_AFTER_END = policy.after_end
_ENTER = VirtualSlurm._enter
_TICK = LinkManager.tick
_ON_HEARTBEAT = Fencer.on_heartbeat
_AGENT_TICK = FencingAgentCore.tick
_READ_CLAIMS = Cluster.read_claims

SITE_MUTANTS: Mapping[str, Callable[[], list[Change]]] = {
    "successor-does-not-wait": _successor_does_not_wait,
    "lost-replica-forgotten": _lost_replica_forgotten,
    "superseded-start-goes-on": _superseded_start_goes_on,
    "link-file-not-checked": _link_file_not_checked,
    "successor-not-queued": _successor_not_queued,
    "waiting-link-queues-nothing": _waiting_link_queues_nothing,
    "rest-not-cancelled": _rest_not_cancelled,
    "restore-of-another-start": _restore_of_another_start,
    "fencing-agent-never-stops": _fencing_agent_never_stops,
    "superseded-leader-stays": _superseded_leader_stays,
    "fencing-agent-continues-superseded": _fencing_agent_continues_superseded,
    "deadline-ignored": _deadline_ignored,
    "claims-of-another-start-followed": _claims_of_another_start_followed,
    "every-cancel-is-a-persons": _every_cancel_is_a_persons,
    "abandoned-job-not-ended": _abandoned_job_not_ended,
    "signs-of-life-ignored": _signs_of_life_ignored,
    "leftovers-called-gone": _leftovers_called_gone,
}
"""Every mutant of chains and fences by its name."""
