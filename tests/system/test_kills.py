from __future__ import annotations

import pytest

from tests.system.chaos import NUM_STEPS, TARGETS, Outcome, expected, strike_all, table
from tests.system.stage import PYTHON, Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

NUM_MOMENTS = 20


def test_the_uninterrupted_training(stage: Stage) -> None:
    run = stage.launch(stage.task(f"{PYTHON} trainer.py {NUM_STEPS} 0", nodes=2))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert [(run.output("main") / f"digest-{rank}").read_text() for rank in range(2)] == [expected(), expected()]
    assert sorted((attempt, rank) for attempt, rank, _ in stage.starts_of()) == [(1, 0), (1, 1)]


def test_kills_at_random_moments(stage: Stage) -> None:
    outcomes = strike_all(stage, range(NUM_MOMENTS))
    assert [outcome for outcome in outcomes if outcome.problems] == [], table(outcomes)
    assert {outcome.target for outcome in outcomes if outcome.num_killed} == set(TARGETS), describe(outcomes)


def describe(outcomes: list[Outcome]) -> str:
    return "\n".join(str(outcome) for outcome in outcomes)
