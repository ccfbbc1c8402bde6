from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.record.histories import History
from windlass.record import events
from windlass.record.causes import Cause, Kind, kind_of
from windlass.record.frames import Record
from windlass.record.retry import DOOMED_WITHIN_S, MAX_WITHOUT_PROGRESS, Budgets, Decision, decide, end_of_chain
from windlass.record.state import RunFacts, State, TaskFacts, fold

INTERRUPTIONS = [str(cause) for cause in Cause if kind_of(cause) is Kind.INTERRUPTION]
FAILURES = [str(cause) for cause in Cause if kind_of(cause) is Kind.FAILURE]
FINALS = [str(cause) for cause in Cause if kind_of(cause) is Kind.FINAL]


class Story:
    """A task's attempts, one after the other."""

    def __init__(self) -> None:
        self.facts = RunFacts()
        self._seq = 0
        self.at = 1000.0
        self.job = 0
        self.number = 0

    @property
    def task(self) -> TaskFacts:
        return self.facts.task("a")

    def say(self, kind: str, **data: object) -> None:
        self._seq += 1
        self.facts.apply(Record(kind, "w", self._seq, self.at, {"task": "a", **data}))

    def submit(self, *, resets_budgets: bool = False) -> None:
        self.job += 1
        self.say(events.JOB_INTENDED, job=self.job, token="t", backend="local", resets_budgets=resets_budgets)

    def attempt(self, cause: str, *, lasts_s: float = 10.0, has_progress: bool = True) -> Story:
        if not self.job:
            self.submit()
        self.number += 1
        where = {"attempt": self.number, "job": self.job}
        self.say(events.ATTEMPT_STARTED, **where, epoch=1, leader="n", address="n", port=1)
        if has_progress:
            self.say(events.CHECKPOINT, attempt=self.number, rank=0, path="p", step=self.number, phase_s=1.0)
        self.at += lasts_s
        self.say(events.ATTEMPT_ENDED, **where, epoch=1, end={"cause": cause, "message": f"message {self.number}"})
        return self

    def decide(self, interrupted: int = 50, failed: int = 0) -> Decision:
        return decide(self.task, Budgets(interrupted, failed))


def test_success_is_success() -> None:
    assert Story().attempt("ok").decide() == Decision(State.SUCCEEDED, "ok")


def test_a_success_after_a_request_to_stop_is_still_a_success() -> None:
    story = Story().attempt("ok")
    story.facts.apply(
        Record(events.STOP_REQUESTED, "c", 1, 1.0, {"tasks": {"a": 1}, "reason": "r", "is_checkpoint_wanted": False})
    )
    assert story.decide().verdict is State.SUCCEEDED


@pytest.mark.parametrize("cause", [*INTERRUPTIONS, *FAILURES, *FINALS])
def test_any_other_end_after_a_request_to_stop_is_a_stop(cause: str) -> None:
    story = Story().attempt(cause)
    story.facts.apply(
        Record(
            events.STOP_REQUESTED, "c", 1, 1.0, {"tasks": {"a": 1}, "reason": "by hand", "is_checkpoint_wanted": False}
        )
    )
    assert story.decide() == Decision(State.STOPPED, "cancelled", "by hand")


@pytest.mark.parametrize("cause", FINALS)
def test_final_causes_are_never_retried(cause: str) -> None:
    verdict = State.STOPPED if cause == "cancelled" else State.FAILED
    assert Story().attempt(cause).decide(50, 50) == Decision(verdict, cause, "message 1")


@pytest.mark.parametrize("cause", INTERRUPTIONS)
def test_an_interruption_goes_on_and_a_failure_does_not(cause: str) -> None:
    assert Story().attempt(cause).decide() == Decision(None)


@pytest.mark.parametrize("cause", FAILURES)
def test_a_failure_ends_the_task_unless_it_may_fail(cause: str) -> None:
    assert Story().attempt(cause).decide() == Decision(State.FAILED, cause, "message 1")
    assert Story().attempt(cause).decide(failed=1) == Decision(None)


@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize("cause", ["preempted", "user-error"])
def test_a_budget_is_used_up_exactly(cause: str, budget: int) -> None:
    story = Story()
    for _ in range(budget):
        assert story.attempt(cause).decide(budget, budget) == Decision(None)
    verdict = story.attempt(cause).decide(budget, budget)
    assert (verdict.verdict, verdict.cause) == (State.FAILED, cause)


def test_the_two_budgets_are_apart() -> None:
    story = Story().attempt("preempted").attempt("preempted").attempt("user-error")
    assert story.decide(interrupted=2, failed=1) == Decision(None)
    assert story.decide(interrupted=0, failed=1) == Decision(None)  # asked about a failure
    assert story.decide(interrupted=2, failed=0).verdict is State.FAILED


def test_no_progress_three_times_in_a_row_ends_it() -> None:
    story = Story().attempt("preempted")
    for _ in range(MAX_WITHOUT_PROGRESS - 1):
        assert story.attempt("preempted", has_progress=False, lasts_s=9999.0).decide() == Decision(None)
    decision = story.attempt("node-lost", has_progress=False, lasts_s=9999.0).decide()
    assert (decision.verdict, decision.cause) == (State.FAILED, "no-progress")
    assert decision.message == "3 attempts in a row made no progress; the last ended by node-lost: message 4"


def test_progress_in_between_starts_the_count_again() -> None:
    story = Story().attempt("preempted")
    for has_progress in (False, False, True, False, False):
        assert story.attempt("preempted", has_progress=has_progress).decide() == Decision(None)


def test_code_that_never_reports_is_doomed_only_when_it_ends_quickly() -> None:
    story = Story()
    for _ in range(10):
        assert story.attempt("preempted", has_progress=False, lasts_s=DOOMED_WITHIN_S).decide() == Decision(None)
    for _ in range(2):
        assert story.attempt("preempted", has_progress=False, lasts_s=DOOMED_WITHIN_S - 1).decide() == Decision(None)
    assert story.attempt("preempted", has_progress=False, lasts_s=0.0).decide().cause == "no-progress"


def test_a_reset_forgets_what_was_used() -> None:
    story = Story().attempt("user-error")
    assert story.decide().verdict is State.FAILED
    story.submit(resets_budgets=True)
    assert story.attempt("preempted").decide(interrupted=1) == Decision(None)
    assert story.attempt("user-error").decide(failed=1) == Decision(None)
    assert story.attempt("user-error").decide(failed=1).verdict is State.FAILED


def test_a_reset_forgets_attempts_without_progress_too() -> None:
    story = Story()
    for _ in range(3):
        story.attempt("preempted", has_progress=False)
    assert story.decide().cause == "no-progress"
    story.submit(resets_budgets=True)
    assert story.attempt("preempted", has_progress=False).decide() == Decision(None)


def test_a_new_job_without_a_reset_keeps_the_count() -> None:
    story = Story().attempt("preempted")
    story.submit()
    assert story.attempt("preempted").decide(interrupted=1).verdict is State.FAILED


@pytest.mark.parametrize("story", [Story(), Story().attempt("ok")])
def test_asking_before_the_end_is_a_bug_of_the_caller(story: Story) -> None:
    if story.number:
        story.say(events.ATTEMPT_STARTED, attempt=2, job=1, epoch=1, leader="n", address="n", port=1)
    with pytest.raises(ValueError, match="task a: the newest attempt has not ended"):
        story.decide()


def test_by_default_interruptions_go_on_and_failures_do_not() -> None:
    assert Budgets() == Budgets(interrupted=50, failed=0)


@pytest.mark.parametrize(("link", "num_links"), [(1, 0), (99, 0), (1, 2), (2, 3)])
def test_a_chain_goes_on_while_it_may_have_another_link(link: int, num_links: int) -> None:
    assert end_of_chain(Story().attempt("walltime").task, link, num_links) is None


@pytest.mark.parametrize("link", [3, 4])
def test_a_chain_ends_with_its_last_link_and_the_cause_of_the_last_attempt(link: int) -> None:
    story = Story().attempt("walltime")
    message = "all 3 jobs of its chain are used up"
    assert end_of_chain(story.task, link, 3) == Decision(State.FAILED, "walltime", message)
    story.say(events.ATTEMPT_STARTED, attempt=2, job=1, epoch=1, leader="n", address="n", port=1)
    assert end_of_chain(story.task, link, 3) == Decision(State.FAILED, "unknown", message)
    assert end_of_chain(Story().task, link, 3) == Decision(State.FAILED, "unknown", message)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([str(cause) for cause in Cause]), st.booleans(), st.sampled_from([1.0, 900.0])),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_no_more_is_lost_than_the_budgets_allow(
    ends: list[tuple[str, bool, float]], interrupted: int, failed: int
) -> None:
    story = Story()
    used = {Kind.INTERRUPTION: 0, Kind.FAILURE: 0}
    for cause, has_progress, lasts_s in ends:
        decision = story.attempt(cause, has_progress=has_progress, lasts_s=lasts_s).decide(interrupted, failed)
        kind = kind_of(Cause(cause))
        assert (decision.verdict is State.SUCCEEDED) == (kind is Kind.DONE)
        if decision.verdict is not None:
            assert decision.verdict.is_terminal
            return
        assert kind in used
        used[kind] += 1
        assert used[Kind.INTERRUPTION] <= interrupted
        assert used[Kind.FAILURE] <= failed


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_a_longer_budget_never_ends_a_task_that_a_shorter_one_lets_live(seed: int) -> None:
    task = fold(History(seed, Budgets(3, 3)).play(20)).task("a")
    if task.newest_attempt is None or task.newest_attempt.end is None:
        return
    for budget in range(4):
        if decide(task, Budgets(budget, budget)).verdict is None:
            assert decide(task, Budgets(budget + 1, budget + 1)).verdict is None


def test_a_cause_of_a_later_version_is_an_interruption() -> None:
    story = Story().attempt("ended-by-the-moon")
    assert decide(story.task, Budgets(interrupted=1)) == Decision(None)
    decision = decide(story.task, Budgets(interrupted=0))
    assert (decision.verdict, decision.cause) == (State.FAILED, "unknown")
