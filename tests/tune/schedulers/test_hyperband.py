"""HyperBand and its BOHB form: brackets as in the paper, halving, what waits and what wakes it."""

from __future__ import annotations

from random import Random

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import UsageError
from windlass.tune.schedulers import HyperBandForBOHB, HyperBandScheduler, SchedulerDecision
from windlass.tune.trial import Trial, TrialStatus


def result(iteration: int, score: float = 0.0) -> dict[str, float]:
    return {"training_iteration": iteration, "score": score}


def still() -> FakeSweep:
    """All trials are there from the beginning."""
    sweep = FakeSweep()
    sweep.is_searching = False
    return sweep


def filled(sweep: FakeSweep, scheduler: HyperBandScheduler, num: int) -> list[Trial]:
    trials = [sweep.add() for _ in range(num)]
    for trial in trials:
        scheduler.on_add(sweep, trial)
    return trials


def test_a_band_has_the_brackets_of_the_paper_smallest_first() -> None:
    sweep, scheduler = still(), HyperBandScheduler(max_t=81)
    filled(sweep, scheduler, 5 + 8 + 15 + 34 + 81 + 1)
    sizes = [[(bracket.size, bracket.milestone) for bracket in band if bracket] for band in scheduler._bands]
    assert sizes == [[(5, 81), (8, 27), (15, 9), (34, 3), (81, 1)], [(5, 81)]]


def test_bohb_fills_the_largest_bracket_first() -> None:
    sweep, scheduler = still(), HyperBandForBOHB(max_t=81)
    filled(sweep, scheduler, 82)
    assert [(bracket.size, bracket.milestone) for bracket in scheduler._bands[0] if bracket] == [(81, 1), (34, 3)]


def test_a_bracket_waits_for_all_and_keeps_its_best() -> None:
    sweep, scheduler = still(), HyperBandScheduler(max_t=9)
    trials = filled(sweep, scheduler, 3 + 5)[3:]  # those of bracket 1: 5 trials, milestone 3
    for trial in trials:
        sweep.start(trial)
    for trial in trials[:4]:
        assert scheduler.credit(sweep, trial) == 3
        assert sweep.report(scheduler, trial, result(2)).decision is SchedulerDecision.CONTINUE
        verdict = sweep.report(scheduler, trial, result(3, trial.number))
        assert verdict.decision is SchedulerDecision.PAUSE
    assert verdict.why == "it waits at training_iteration 3 for 1 other trial of its bracket"
    verdict = sweep.report(scheduler, trials[4], result(3, -1.0))
    assert (verdict.decision, verdict.why) == (
        SchedulerDecision.STOP,
        "not among the best 2 of 5 at training_iteration 3",
    )
    assert [trial.status for trial in trials] == [
        TrialStatus.TERMINATED, TrialStatus.TERMINATED, TrialStatus.PENDING, TrialStatus.PENDING, TrialStatus.TERMINATED
    ]  # fmt: skip


def test_the_least_complete_bracket_of_the_oldest_band_gets_the_slot() -> None:
    sweep, scheduler = still(), HyperBandScheduler(max_t=9)
    trials = filled(sweep, scheduler, 8)
    first = scheduler.choose(sweep)
    assert first is trials[0]
    sweep.start(first)
    sweep.report(scheduler, first, result(5))
    assert scheduler.choose(sweep) is trials[3]
    sweep.misfits.update(trial.id for trial in trials[3:])
    assert scheduler.choose(sweep) is trials[1]


@pytest.mark.parametrize("how", ["fail", "remove", "complete"])
def test_a_trial_that_dies_after_the_first_halving_holds_nobody_up(how: str) -> None:
    """In Ray Tune its bracket waits for ever: a flag that is set at the first halving is never taken back."""
    sweep, scheduler = still(), HyperBandScheduler(max_t=9)
    trials = filled(sweep, scheduler, 8)[3:]
    for trial in trials:
        sweep.start(trial)
        sweep.report(scheduler, trial, result(3, trial.number))
    winners = [trial for trial in trials if trial.status is TrialStatus.PENDING]
    if trials[-1].status is TrialStatus.RUNNING:
        winners.append(trials[-1])
    assert len(winners) == 2
    for trial in winners:
        sweep.start(trial)
    sweep.report(scheduler, winners[0], result(9, 1.0))
    assert sweep.paused == {winners[0].id: winners[0]}
    if how == "fail":
        sweep.fail(scheduler, winners[1], is_final=True)
    elif how == "complete":
        sweep.complete(scheduler, winners[1], result(5))
    else:
        sweep.move(winners[1], TrialStatus.PAUSED)
        sweep.remove(scheduler, winners[1])
    for trial in list(sweep.pending.values()):  # the rest of the sweep
        sweep.move(trial, TrialStatus.TERMINATED)
    scheduler.choose(sweep)
    assert not sweep.paused
    assert winners[0].status is TrialStatus.TERMINATED


def test_trials_far_beyond_the_next_milestone_go_on_when_nothing_runs() -> None:
    sweep, scheduler = still(), HyperBandScheduler(max_t=27)
    trials = filled(sweep, scheduler, 4 + 6 + 12)[10:]  # bracket 2: milestone 3
    for trial in trials:
        sweep.start(trial)
    for trial in trials:
        sweep.report(scheduler, trial, result(20, trial.number))  # beyond 9, too
    for trial in list(sweep.pending.values()):
        sweep.remove(scheduler, trial)
    for _ in range(4):
        chosen = scheduler.choose(sweep)
        if chosen is not None:
            sweep.start(chosen)
            sweep.report(scheduler, chosen, result(27, chosen.number))
    assert not sweep.live()


def test_bohb_tells_the_searcher_the_budget_and_does_not_wait_for_a_full_bracket() -> None:
    sweep, scheduler = still(), HyperBandForBOHB(max_t=9)
    trials = filled(sweep, scheduler, 3)
    for trial in trials:
        sweep.start(trial)
    first = result(1, 1.0)
    assert sweep.report(scheduler, trials[0], first).decision is SchedulerDecision.PAUSE
    assert first["hyperband_info/budget"] == 1
    for trial in trials[1:]:
        sweep.report(scheduler, trial, result(1, 0.5))
    assert {trial.status for trial in trials} == {TrialStatus.PAUSED}
    assert scheduler.choose(sweep) is trials[0]  # nothing runs: halved with the three that came
    assert trials[0].status is TrialStatus.PENDING


def test_credit_ends_at_the_milestone() -> None:
    rng = Random(0)
    sweep, scheduler = still(), HyperBandScheduler(max_t=9, stop_last_trials=False)
    for trial in filled(sweep, scheduler, 16):
        sweep.start(trial)
    for _ in range(300):
        trial = rng.choice(list(sweep.running.values()))
        for left in range(min(scheduler.credit(sweep, trial), 20), 0, -1):
            verdict = sweep.report(scheduler, trial, result(trial.iteration + 1, rng.random()))
            assert left == 1 or verdict.decision is SchedulerDecision.CONTINUE
        chosen = scheduler.choose(sweep)
        if chosen is not None:
            sweep.start(chosen)


def test_a_result_without_time_or_metric_is_refused() -> None:
    sweep, scheduler = still(), HyperBandScheduler(max_t=9, time_attr="epoch")
    (trial,) = filled(sweep, scheduler, 1)
    sweep.start(trial)
    with pytest.raises(
        UsageError, match="trial 00000 did not report 'epoch', by which HyperBandScheduler measures time"
    ) as caught:
        scheduler.on_result(sweep, trial, result(1))
    assert caught.value.code == "unknown-metric"
    HyperBandScheduler(max_t=1)
    with pytest.raises(UsageError, match="max_t is 0"):
        HyperBandScheduler(max_t=0)


def test_a_bracket_is_not_halved_before_it_is_full_while_trials_come() -> None:
    sweep, scheduler = FakeSweep(), HyperBandScheduler(max_t=9)
    trials = filled(sweep, scheduler, 4)[3:]
    for trial in list(sweep.pending.values()):
        sweep.start(trial)
    verdict = sweep.report(scheduler, trials[0], result(3))
    assert verdict.why == "it waits at training_iteration 3 until its bracket has 5 trials"
    trials += filled(sweep, scheduler, 3)
    for trial in trials[1:]:
        sweep.start(trial)
        assert sweep.report(scheduler, trial, result(3, trial.number)).decision is SchedulerDecision.PAUSE
    assert scheduler.choose(sweep) is None
    sweep.is_searching = False  # no fifth one comes
    assert scheduler.choose(sweep) is trials[-2]
    assert [trial.status for trial in trials[:2]] == [TrialStatus.TERMINATED, TrialStatus.TERMINATED]
