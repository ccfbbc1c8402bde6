"""The policy for tasks that evaluate checkpoints: what is selected, skipped, repeated and held, and when it ends."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from windlass.record import events
from windlass.record.evaluation import (
    EvaluationState,
    best_checkpoint,
    evaluations,
    held_paths,
    next_evaluation,
    published_checkpoints,
)
from windlass.record.facts import EvaluationRule, SavedCheckpoint
from windlass.record.frames import Record
from windlass.record.retry import Budgets, decide
from windlass.record.state import End, RunFacts, State, fold

BUDGETS = Budgets(2, 0)


class History:
    """A run with `train`, and `quality`, which evaluates its checkpoints."""

    def __init__(self, **rule: Any) -> None:
        self.rule = EvaluationRule(of="train", **rule)
        self.records: list[Record] = []
        task = {"after": [], "replicas": 1, "interrupted": 2, "failed": 0}
        tasks = {"train": task, "quality": {**task, "evaluates": vars(self.rule)}}
        self.say(events.RUN_CREATED, run="r-1", name="r", why="", plan_hash="", tasks=tasks)
        for name in tasks:
            self.job(name, 1)

    def say(self, kind: str, **data: Any) -> None:
        number = len(self.records) + 1
        self.records.append(Record(kind, "w", number, 1000.0 + number, data))

    def job(self, task: str, number: int, *, resets: bool = False) -> None:
        self.say(events.JOB_INTENDED, task=task, job=number, token="t", backend="local", resets_budgets=resets)

    def saved(self, *steps: int) -> History:
        for step in steps:
            self.say(events.CHECKPOINT, task="train", attempt=1, rank=0, path=f"/c/step-{step}", step=step)
        return self

    def begin(self, attempt: int, step: int, job: int = 1) -> History:
        evaluates = {"path": f"/c/step-{step}", "step": step, "digest": f"d{step}"}
        where = {"epoch": 1, "leader": "h", "address": "", "port": 0}
        self.say(events.ATTEMPT_STARTED, task="quality", job=job, attempt=attempt, evaluates=evaluates, **where)
        return self

    def evaluated(self, attempt: int, step: int, cause: str = "ok", job: int = 1) -> History:
        self.begin(attempt, step, job)
        end = End(cause, message="" if cause == "ok" else f"it was {cause}").to_data()
        self.say(events.ATTEMPT_ENDED, task="quality", job=job, attempt=attempt, epoch=1, end=end)
        return self

    def over(self, verdict: str = "succeeded", task: str = "train") -> History:
        self.say(events.TASK_ENDED, task=task, job=1, attempt=1, verdict=verdict, cause="ok", message="")
        return self

    def facts(self) -> RunFacts:
        return fold(self.records)

    def next(self, best: int = -1) -> Any:
        facts = self.facts()
        named = SavedCheckpoint(best, f"/c/step-{best}") if best >= 0 else None
        return next_evaluation(facts.task("quality"), facts.task("train"), BUDGETS, named)

    def states(self) -> dict[int, str]:
        facts = self.facts()
        found = evaluations(facts.task("quality"), facts.task("train"), BUDGETS)
        return {each.checkpoint.step: str(each.state) for each in found}


def test_every_second_checkpoint_in_order() -> None:
    history = History(every=2)
    assert history.next().reason == "waits for a checkpoint of task train"
    history.saved(10)
    assert history.next().reason
    history.saved(20, 30, 40)
    assert history.next().checkpoint.step == 20
    history.evaluated(1, 20)
    assert history.next().checkpoint.step == 40
    history.evaluated(2, 40).saved(50).over()
    assert history.next().verdict is State.SUCCEEDED
    assert history.states() == {20: "done", 40: "done"}


def test_a_checkpoint_that_is_saved_again_counts_once() -> None:
    history = History(every=2).saved(10, 20, 20, 10, 30)
    assert history.next().checkpoint.step == 20
    assert [each.step for each in published_checkpoints(history.facts().task("train"))] == [10, 20, 30]


def test_last_and_best_are_known_once_training_has_succeeded() -> None:
    history = History(last=True, best="loss").saved(10, 20, 30)
    assert history.next().reason
    history.over()
    assert history.next(best=10).checkpoint.step == 10
    history.evaluated(1, 10)
    assert history.next(best=10).checkpoint.step == 30
    history.evaluated(2, 30)
    assert history.next(best=10).verdict is State.SUCCEEDED


def test_the_last_one_is_not_evaluated_twice() -> None:
    history = History(every=1, last=True).saved(10).evaluated(1, 10).over()
    assert history.next().verdict is State.SUCCEEDED


@pytest.mark.parametrize(
    ("values", "mode", "step"),
    [
        ({10: 3.0, 20: 1.0, 30: 2.0}, "min", 20),
        ({10: 3.0, 20: 1.0, 30: 2.0}, "max", 10),
        ({9: 1.0, 19: float("nan"), 29: 2.0}, "min", 10),
        ({10: 1.0, 20: 1.0}, "min", 10),
    ],
)
def test_best_checkpoint(values: dict[int, float], mode: str, step: int) -> None:
    saved = [SavedCheckpoint(each, f"/c/{each}") for each in (10, 20, 30)]
    best = best_checkpoint(saved, values, mode)
    assert best is not None
    assert best.step == step


def test_without_a_value_there_is_no_best() -> None:
    assert best_checkpoint([SavedCheckpoint(10, "/c")], {}, "min") is None
    chosen = History(best="loss").saved(10).over().next()
    assert (chosen.verdict, chosen.message) == (State.FAILED, "no checkpoint of task train has a value of `loss`")


def test_training_without_checkpoints_fails_the_evaluation_only() -> None:
    history = History(every=1).over()
    assert (history.next().verdict, history.next().message) == (State.FAILED, "task train published no checkpoint")
    assert history.facts().task("train").state is State.SUCCEEDED


def test_too_many_waiting_checkpoints_are_skipped_oldest_first() -> None:
    history = History(every=1, max_waiting=2).saved(1, 2, 3, 4, 5)
    chosen = history.next()
    assert [each.step for each in chosen.skipped] == [1, 2, 3]
    assert chosen.checkpoint.step == 4
    for each in chosen.skipped:
        history.say(events.EVALUATION_SKIPPED, task="quality", path=each.path, step=each.step, reason="too many")
    assert history.next().skipped == ()
    assert history.states() == {1: "skipped", 2: "skipped", 3: "skipped", 4: "waiting", 5: "waiting"}


def test_a_failed_evaluation_is_given_up_and_the_next_one_goes_on() -> None:
    history = History(every=1).saved(10, 20).evaluated(1, 10, "user-error")
    assert history.next().checkpoint.step == 20
    chosen = history.evaluated(2, 20).over().next()
    assert chosen.verdict is State.FAILED
    assert chosen.cause == "user-error"
    assert chosen.message == "1 of 2 evaluations failed (step 10): it was user-error"


def test_an_interrupted_evaluation_is_repeated_within_its_own_budget() -> None:
    history = History(every=1).saved(10, 20)
    for attempt in (1, 2):
        history.evaluated(attempt, 10, "killed")
        assert history.next().checkpoint.step == 10
    history.evaluated(3, 10, "killed")
    assert history.next().checkpoint.step == 20
    assert history.states() == {10: "failed", 20: "waiting"}


def test_a_retry_repeats_what_failed_and_nothing_else() -> None:
    history = History(every=1).saved(10, 20).evaluated(1, 10, "user-error").evaluated(2, 20)
    history.job("quality", 2, resets=True)
    assert history.states() == {10: "waiting", 20: "done"}


def test_training_that_fails_ends_the_task_after_what_waits() -> None:
    history = History(every=1, last=True).saved(10).over("failed")
    assert history.next().checkpoint.step == 10
    chosen = history.evaluated(1, 10).next()
    assert (chosen.verdict, chosen.cause) == (State.FAILED, "sibling-failed")


def test_entries_count_only_without_committed_checkpoints() -> None:
    history = History(every=1)
    history.say(events.PROGRESS_ENTRY, task="train", attempt=1, path="checkpoint-5")
    assert history.next().checkpoint == SavedCheckpoint(5, "checkpoint-5")
    history.saved(7)
    assert history.next().checkpoint.step == 7


def test_between_two_evaluations_the_task_is_queued() -> None:
    history = History(every=1).saved(10).begin(1, 10)
    assert history.facts().task("quality").state is State.RUNNING
    history.records.pop()
    history.evaluated(1, 10)
    assert history.facts().task("quality").state is State.QUEUED


def test_the_retry_policy_leaves_evaluations_to_this_one() -> None:
    task = History(every=1).saved(10).evaluated(1, 10).facts().task("quality")
    assert decide(task, BUDGETS).verdict is None
    task = History(every=1).saved(10).evaluated(1, 10, "user-error").facts().task("quality")
    assert decide(task, BUDGETS).verdict is None
    task = History(every=1).saved(10).evaluated(1, 10, "cancelled").facts().task("quality")
    assert decide(task, BUDGETS).verdict is State.STOPPED


def test_attempts_that_never_began_use_up_the_budgets_of_the_task() -> None:
    history = History(every=1).saved(10).evaluated(1, 10)
    for attempt in (2, 3, 4):
        history.say(events.JOB_LOST, task="quality", job=1, attempt=attempt, cause="unknown", message="gone")
    assert decide(history.facts().task("quality"), BUDGETS).verdict is State.FAILED


def test_what_is_held() -> None:
    history = History(every=2, last=True, best="loss").saved(10, 20, 30, 40)

    def held() -> list[str]:
        facts = history.facts()
        values = {"loss": {10: 1.0, 20: 2.0}}
        paths = held_paths([facts.task("quality")], facts.task("train"), values)
        return sorted(path.rpartition("-")[2] for path in paths)

    assert held() == ["10", "20", "40"]
    history.begin(1, 20)
    assert held() == ["10", "20", "40"]
    history.records.pop()
    history.evaluated(1, 20)
    assert held() == ["10", "40"]
    history.over("failed", "quality")
    assert held() == []


def test_the_order_of_records_does_not_matter() -> None:
    history = History(every=1, max_waiting=2).saved(1, 2, 3).evaluated(1, 1, "killed").evaluated(2, 1).begin(3, 2)
    history.say(events.EVALUATION_SKIPPED, task="quality", path="/c/step-3", step=3, reason="too many")
    wanted = history.states()
    shuffled = list(history.records)
    for seed in range(20):
        random.Random(seed).shuffle(shuffled)
        facts = fold(shuffled)
        found = evaluations(facts.task("quality"), facts.task("train"), BUDGETS)
        assert {each.checkpoint.step: str(each.state) for each in found} == wanted


def test_one_kill_at_every_moment() -> None:
    """Each checkpoint is done once, whichever attempts are killed; nothing is evaluated after it is done."""
    for kills in itertools.product((False, True), repeat=5):
        history, attempt, fates = History(every=1).saved(1, 2, 3).over(), 0, iter(kills)
        while True:
            chosen = history.next()
            if chosen.verdict is not None:
                break
            attempt += 1
            history.evaluated(attempt, chosen.checkpoint.step, "killed" if next(fates, False) else "ok")
        states = history.states()
        assert set(states) == {1, 2, 3}
        attempts = history.facts().task("quality").attempts.values()
        done = [each.evaluates.step for each in attempts if each.end is not None and each.end.cause == "ok"]
        assert sorted(done) == sorted(set(done))
        assert {step for step, state in states.items() if state == str(EvaluationState.DONE)} == set(done)
        assert sum(kills) <= 2 or chosen.verdict in (State.FAILED, State.SUCCEEDED)
