"""What becomes of a trial whose attempt is over."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.tune.controller.settings import SweepSettings
from windlass.tune.controller.trial_completion import Then, after_end
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome
from windlass.tune.trial import Trial, TrialStatus

RUNNING, PAUSED = TrialStatus.RUNNING, TrialStatus.PAUSED


@pytest.mark.parametrize(
    ("how", "status", "counts", "is_old", "then", "why"),
    [
        (AttemptOutcome.FAILED, RUNNING, {"num_failures": 2}, False, Then.GIVEN_UP, "ValueError: too steep"),
        (AttemptOutcome.FAILED, PAUSED, {"num_failures": 2}, False, Then.GIVEN_UP, "ValueError: too steep"),
        (
            AttemptOutcome.FAILED,
            RUNNING,
            {"num_failures": 1},
            False,
            Then.RETRIED,
            "will be retried: ValueError: too steep",
        ),
        (AttemptOutcome.FAILED, PAUSED, {"num_failures": 1}, False, Then.NOTHING, ""),
        (
            AttemptOutcome.LOST,
            RUNNING,
            {"num_interruptions": 3},
            False,
            Then.GIVEN_UP,
            "it lost its worker 3 times; the last error: gone",
        ),
        (AttemptOutcome.LOST, RUNNING, {"num_interruptions": 2}, False, Then.BACK, "its worker was lost: gone"),
        (AttemptOutcome.LOST, PAUSED, {"num_interruptions": 2}, False, Then.NOTHING, ""),
        (AttemptOutcome.DONE, RUNNING, {}, False, Then.DONE, "it ended by itself"),
        (AttemptOutcome.DONE, PAUSED, {}, False, Then.DONE, "it ended by itself"),
        (AttemptOutcome.DONE, PAUSED, {}, True, Then.NOTHING, ""),
        (AttemptOutcome.HALTED, RUNNING, {}, False, Then.BACK, "its head was ended"),
        (AttemptOutcome.HALTED, PAUSED, {}, False, Then.NOTHING, ""),
    ],
)
def test_every_end(
    how: AttemptOutcome, status: TrialStatus, counts: dict[str, Any], is_old: bool, then: Then, why: str
) -> None:
    trial = Trial(id="00000", number=0, config={}, status=status, **counts)
    said = (
        {"kind": "ValueError", "error": "Traceback ...\nValueError: too steep\n"}
        if how is AttemptOutcome.FAILED
        else {}
    )
    said = {"error": "gone"} if how is AttemptOutcome.LOST else said
    settings = SweepSettings(name="s", max_failures=1, max_interruptions=2)
    after = after_end(trial, AttemptEnded(trial="00000", attempt=1, how=how, **said), settings, is_old=is_old)
    assert (after.then, after.why) == (then, why)


def test_a_budget_without_end() -> None:
    trial = Trial(id="00000", number=0, config={}, status=RUNNING, num_failures=10_000)
    event = AttemptEnded(trial="00000", attempt=1, how=AttemptOutcome.FAILED)
    assert after_end(trial, event, SweepSettings(name="s", max_failures=-1), is_old=False).then is Then.RETRIED
