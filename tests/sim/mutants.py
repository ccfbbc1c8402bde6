"""Policies broken on purpose, one at a time: what the simulation must notice.

`python -m tests.sim --mutants` prints the seed at which each is caught.

Each mutant changes one place of the shipped code for as long as it is entered. A simulation that lets one live for
1,500 seeds does not watch what it claims to watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.sim.scenario import draw, is_at_site
from tests.sim.site.mutants import SITE_MUTANTS
from windlass.backends import JobState, Observation, Rendered
from windlass.core.errors import UsageError
from windlass.core.names import nearest
from windlass.launcher import control, submit
from windlass.launcher.reconcile import assessment, policy, reconciler
from windlass.record import frames, retry
from windlass.record.causes import Cause, Kind, kind_of
from windlass.record.state import End, State, TaskFacts
from windlass.supervise.gang.core import GangCore
from windlass.supervise.gang.messages import Phase, Release, Spawn
from windlass.supervise.replica.core import ReplicaCore
from windlass.supervise.replica.supervisor import Supervisor

if TYPE_CHECKING:
    from windlass.launcher.ports import ClientJournal, ClientPorts
    from windlass.record.frames import Record
    from windlass.supervise.gang.messages import Command, Order

__all__ = ["CAUGHT_AT", "MUTANTS", "mutated", "seeds_of"]

NUM_SEEDS = 1500
NEEDED_FAULTS = {
    "every-cancel-is-a-persons": "amnesia",
    "abandoned-job-not-ended": "kill-step-daemon",
    "leftovers-called-gone": "deaf",
    "signs-of-life-ignored": "orphan",
}
"""Faults without which a mutant does nothing: only seeds that have them are tried, and of four times as many."""

Change = tuple[object, str, object]


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run with the mutant of this name in place of the shipped policy.

    Raises:
        UsageError: there is no such mutant.
    """
    if name not in MUTANTS:
        hint = nearest(name, MUTANTS) or ", ".join(MUTANTS)
        raise UsageError(f"no mutant `{name}`", hint=f"did you mean `{hint}`?", code="unknown-name")
    changes = MUTANTS[name]()
    kept = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in changes]
    for owner, attribute, replacement in changes:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in kept:
            setattr(owner, attribute, original)


def seeds_of(mutant: str) -> list[int]:
    """Seeds in which a mutant must be caught: of chains and fences at sites, others on single machines."""
    is_wanted = mutant in SITE_MUTANTS
    fault = NEEDED_FAULTS.get(mutant, "")
    seeds = [seed for seed in range(4 * NUM_SEEDS if fault else NUM_SEEDS) if is_at_site(seed) is is_wanted]
    return [seed for seed in seeds if not fault or any(what == fault for _, what, _ in draw(seed).faults.events)]


def _submit_before_journal() -> list[Change]:
    """The client makes the job first and writes its intent down afterwards."""

    def intend(ports: ClientPorts, jobs: Mapping[str, int], journal: ClientJournal, *, resets_budgets: bool) -> None:
        for task, number in jobs.items():
            folder = ports.files.job_folder(task, number)
            ports.backend().submit(Rendered(folder=folder, files={}, argv=(), token=ports.new_token()))
        _INTEND(ports, jobs, journal, resets_budgets=resets_budgets)

    return [(module, "intend", intend) for module in (submit, reconciler, control)]


def _no_attempt_check() -> list[Change]:
    """A supervisor that comes back does not look whether the attempt was begun."""
    return [(ReplicaCore, "restore", lambda self: 0)]


def _budget_never_decremented() -> list[Change]:
    """Ended attempts use nothing of the budgets."""

    def decide(task: TaskFacts, budgets: retry.Budgets) -> retry.Decision:
        return _DECIDE(task, retry.Budgets(10**6, 10**6))

    return _decides(decide)


def _lost_terminal_record() -> list[Change]:
    """The leader leaves at the task's end without a word in the journal."""

    def end_task(self: GangCore, verdict: State, cause: str, message: str, now: float) -> list[Command]:
        return [Release(), *self._leave(0 if verdict is State.SUCCEEDED else 1)]

    return [(GangCore, "_end_task", end_task)]


def _start_not_recorded() -> list[Change]:
    """User code is started before `process-starting` is on disk."""

    def start(self: ReplicaCore, order: Order) -> list[Command]:
        self.phase, self._has_process = Phase.STARTED, True
        return [Spawn(self.attempt, order.address, order.port)]

    return [(ReplicaCore, "_start", start)]


def _success_forgotten() -> list[Change]:
    """A job that a scheduler starts again after the task's success begins anew; neither leader nor replica notices."""

    def leave_if_over(self: GangCore, task: TaskFacts) -> list[Command]:
        if task.end is not None and task.end[0] is State.SUCCEEDED:
            return []
        return _LEAVE_IF_OVER(self, task)

    def decide(task: TaskFacts, budgets: retry.Budgets) -> retry.Decision:
        decision = _DECIDE(task, budgets)
        is_again = decision.verdict is State.SUCCEEDED and task.end is not None
        return retry.Decision(None) if is_again else decision

    def on_alone(self: ReplicaCore) -> list[Command]:
        task = self._journal.task()
        return [] if task.end is not None and task.end[0] is State.SUCCEEDED else _ON_ALONE(self)

    return [(GangCore, "_leave_if_over", leave_if_over), (ReplicaCore, "on_alone", on_alone), *_decides(decide)]


def _unknown_is_gone() -> list[Change]:
    """A job that cannot be seen is taken for dead."""

    def reconcile(task: TaskFacts, seen: Observation, *rest: Any, **words: Any) -> policy.Action | None:
        gone = Observation(state=JobState.GONE)
        return _RECONCILE(task, gone if seen.state is JobState.UNKNOWN else seen, *rest, **words)

    return [(assessment, "reconcile", reconcile)]


def _lower_epoch_obeyed() -> list[Change]:
    """A replica follows whoever spoke last."""

    def on_order(self: ReplicaCore, order: Order, now: float, port: int) -> list[Command]:
        self.order = self.order.but(epoch=min(self.order.epoch, order.epoch))
        return _ON_ORDER(self, order, now, port)

    return [(ReplicaCore, "on_order", on_order)]


def _second_cause_overwrites() -> list[Change]:
    """What ended later takes the place of what ended first."""

    def first_end(self: GangCore, ended: dict[int, End]) -> End:
        bad = [end for end in ended.values() if end.cause != Cause.OK]
        return max(bad, key=lambda end: end.at, default=_FIRST_END(self, ended))

    return [(GangCore, "_first_end", first_end)]


def _first_cause_unnamed() -> list[Change]:
    """The leader names the last replica that ended badly and not the first."""
    from windlass.supervise.gang import outcome

    def precedence(end: End) -> tuple[bool, float, int]:
        is_mere_echo = end.cause in (Cause.OK, Cause.SIBLING_FAILED)
        return (not is_mere_echo, -end.at, end.rank)

    return [(outcome, "_precedence", precedence)]


def _final_causes_retried() -> list[Change]:
    """What must not be tried again is a failure like any other."""

    def lenient(cause: Cause) -> Kind:
        return Kind.INTERRUPTION if kind_of(cause) is Kind.FINAL else kind_of(cause)

    return [(retry, "kind_of", lenient)]


def _torn_tail_kept() -> list[Change]:
    """A writer that opens its file after a crash appends behind the torn record."""

    def read_frames(content: bytes, *, skip: tuple[str, ...] = ()) -> tuple[list[Record], int, int]:
        records, _, num_damaged = _READ_FRAMES(content, skip=skip)
        return records, len(content), num_damaged

    return [(frames, "read_frames", read_frames)]


def _superseded_goes_on() -> list[Change]:
    """A job runs on, or again, although a newer one took its task over."""

    def leave_if_over(self: GangCore, task: TaskFacts) -> list[Command]:
        return _LEAVE_IF_OVER(self, task) if task.end is not None else []

    return [(GangCore, "_leave_if_over", leave_if_over), (ReplicaCore, "on_alone", lambda self: [])]


def _stop_ignored() -> list[Change]:
    """The retry policy does not ask whether somebody wants the run to stop."""

    def decide(task: TaskFacts, budgets: retry.Budgets) -> retry.Decision:
        kept, task.stopped_job = task.stopped_job, 0
        try:
            return _DECIDE(task, budgets)
        finally:
            task.stopped_job = kept

    return [*_decides(decide), (GangCore, "_handle_requests", lambda self, task, now: [])]


def _early_barrier() -> list[Change]:
    """The gang starts when all replicas but one are ready."""

    def gather(self: GangCore, now: float) -> list[Command]:
        number = self.order.attempt
        ready = [s for s in self.membership.statuses.values() if s.attempt == number and s.phase is Phase.READY]
        is_enough = len(ready) >= max(1, self._gang.num_replicas - 1) and 0 in self.membership.statuses
        return (
            self._start_attempt(number, now) if is_enough and not self.membership.ended(number) else _GATHER(self, now)
        )

    return [(GangCore, "_gather", gather)]


def _outvoted_leader_stays() -> list[Change]:
    """A leader that was cut off does not notice that another one was chosen."""
    from windlass.supervise.gang.election import Candidate

    return [(Candidate, "must_yield", staticmethod(lambda epoch, claims: False))]


def _leftovers_not_swept() -> list[Change]:
    """A supervisor below a new guard leaves alone what the old guard's processes started."""
    return [(Supervisor, "_sweep", lambda self: None)]


def _leader_never_yields() -> list[Change]:
    """A leader does not look at the claims of others."""
    return [(Supervisor, "_yield_if_outvoted", lambda self, now: None)]


def _doomed_loop() -> list[Change]:
    """Attempts without progress may go on until the budget is spent."""
    return [(retry, "MAX_WITHOUT_PROGRESS", 10**6)]


def _decides(decide: Callable[[TaskFacts, retry.Budgets], retry.Decision]) -> list[Change]:
    from windlass.supervise.gang import core

    return [(core, "decide", decide), (policy, "decide", decide)]


_DECIDE = retry.decide
_INTEND = submit.intend
_RECONCILE = policy.reconcile
_LEAVE_IF_OVER = GangCore._leave_if_over
_GATHER = GangCore._gather
_FIRST_END = GangCore._first_end
_ON_ALONE = ReplicaCore.on_alone
_ON_ORDER = ReplicaCore.on_order
_READ_FRAMES = frames.read_frames

MUTANTS: Mapping[str, Callable[[], list[Change]]] = {
    "submit-before-journal": _submit_before_journal,
    "no-attempt-check": _no_attempt_check,
    "budget-never-decremented": _budget_never_decremented,
    "lost-terminal-record": _lost_terminal_record,
    "start-not-recorded": _start_not_recorded,
    "success-forgotten": _success_forgotten,
    "unknown-is-gone": _unknown_is_gone,
    "lower-epoch-obeyed": _lower_epoch_obeyed,
    "second-cause-overwrites": _second_cause_overwrites,
    "first-cause-unnamed": _first_cause_unnamed,
    "final-causes-retried": _final_causes_retried,
    "torn-tail-kept": _torn_tail_kept,
    "superseded-goes-on": _superseded_goes_on,
    "stop-ignored": _stop_ignored,
    "early-barrier": _early_barrier,
    "outvoted-leader-stays": _outvoted_leader_stays,
    "doomed-loop": _doomed_loop,
    "leftovers-not-swept": _leftovers_not_swept,
    "leader-never-yields": _leader_never_yields,
    **SITE_MUTANTS,
}
"""Every mutant by its name; calling it gives the changes it makes."""

CAUGHT_AT: Mapping[str, int] = {
    "submit-before-journal": 5,
    "no-attempt-check": 16,
    "budget-never-decremented": 8,
    "lost-terminal-record": 5,
    "start-not-recorded": 5,
    "success-forgotten": 5,
    "unknown-is-gone": 67,
    "lower-epoch-obeyed": 112,
    "second-cause-overwrites": 23,
    "first-cause-unnamed": 23,
    "final-causes-retried": 5,
    "torn-tail-kept": 24,
    "superseded-goes-on": 568,
    "stop-ignored": 54,
    "early-barrier": 8,
    "outvoted-leader-stays": 112,
    "doomed-loop": 24,
    "leftovers-not-swept": 424,
    "leader-never-yields": 112,
    "successor-does-not-wait": 28,
    "lost-replica-forgotten": 220,
    "superseded-start-goes-on": 13,
    "link-file-not-checked": 13,
    "successor-not-queued": 6,
    "waiting-link-queues-nothing": 7,
    "rest-not-cancelled": 1,
    "restore-of-another-start": 2,
    "fencing-agent-never-stops": 21,
    "superseded-leader-stays": 75,
    "fencing-agent-continues-superseded": 310,
    "deadline-ignored": 107,
    "claims-of-another-start-followed": 13,
    "every-cancel-is-a-persons": 2069,
    "abandoned-job-not-ended": 1149,
    "signs-of-life-ignored": 25,
    "leftovers-called-gone": 741,
}
"""The first seed that caught each mutant when last measured: tried first, so that a mutant costs one history."""
