"""The core alone: events in, records and commands out."""

from __future__ import annotations

from typing import Any

from windlass.tune.controller.core import Core
from windlass.tune.controller.inputs import HeadOpened, TrialSuggested
from windlass.tune.controller.settings import RetentionPolicy, SweepSettings
from windlass.tune.controller.state import Command, Drop
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Go,
    Halt,
    SlotNoticed,
    StartAttempt,
)
from windlass.tune.schedulers import FIFO, SchedulerDecision, Verdict
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.search.protocol import Objectives, Suggestion
from windlass.tune.trial import SavedState, Trial, TrialStatus

GOAL = Objectives(metrics=("score",), is_max=(True,))


class Told(FIFO):
    """A scheduler that does what the test puts into `acts`, by trial and iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.acts: dict[tuple[str, int], Any] = {}

    def on_result(self, sweep: Any, trial: Trial, result: Any) -> Verdict:
        act = self.acts.get((trial.id, result["training_iteration"]))
        return act(sweep, trial) if act is not None else super().on_result(sweep, trial, result)

    def credit(self, sweep: Any, trial: Trial) -> int:
        return 1


class Bench:
    """A core with two trials that run."""

    def __init__(self, **settings: Any) -> None:
        searcher = BasicVariantGenerator()
        searcher.open(space={}, objectives=GOAL, seed=0, num_samples=9)
        self.scheduler = Told()
        self.core = Core(
            SweepSettings(name="a", objectives=GOAL, **settings), searcher=searcher, scheduler=self.scheduler
        )
        self.core.apply(HeadOpened(number=1, host="h", pid=1), 0.0)
        for _ in range(2):
            self.core.apply(TrialSuggested(suggestion=Suggestion(config={"x": 1})), 0.0)
            assert self.core.choose(lambda _: True, 0.0)
        self.core.take()

    def report(self, trial: str, iteration: int, attempt: int = 1, saved: str = "", **more: Any) -> list[Command]:
        metrics = {"score": float(iteration), "training_iteration": iteration, "time_total_s": iteration * 2.0, **more}
        return self.apply(AttemptReported(trial=trial, attempt=attempt, metrics=metrics, saved=saved))

    def save(self, trial: str, iteration: int, attempt: int = 1) -> list[Command]:
        path = f"{trial}/{iteration}-{attempt}"
        return self.apply(AttemptSaved(trial=trial, attempt=attempt, iteration=iteration, path=path))

    def apply(self, event: Any) -> list[Command]:
        self.core.apply(event, 1.0)
        self.lines, commands = self.core.take()
        return commands

    def restart(self) -> StartAttempt:
        assert self.core.choose(lambda _: True, 2.0)
        lines, commands = self.core.take()
        self.chosen, start = lines[-1], commands[-1]
        assert isinstance(start, StartAttempt)
        return start

    def lose(self, trial: str, attempt: int = 1) -> list[Command]:
        return self.apply(AttemptEnded(trial=trial, attempt=attempt, how=AttemptOutcome.LOST, error="gone"))


def test_a_report_is_answered_and_a_repeat_or_a_stale_one_is_not_written() -> None:
    bench = Bench()
    assert bench.report("00000", 1) == [Go(trial="00000", attempt=1, credit=1, upto=2)]
    assert bench.report("00000", 1) == []
    assert bench.lines == []
    assert bench.report("00000", 2, attempt=7) == []
    assert bench.lines == []


def test_a_restarted_trial_may_repeat_what_is_known_without_answers() -> None:
    bench = Bench()
    bench.report("00000", 1, saved="00000/1-1")
    for iteration in (2, 3, 4):
        bench.report("00000", iteration)
    bench.lose("00000")
    start = bench.restart()
    assert (start.trial, start.attempt, start.restore_from, start.iteration) == ("00000", 2, "00000/1-1", 1)
    assert start.credit == 4
    assert start.time_total_s == 2.0
    for iteration in (2, 3, 4):
        assert bench.report("00000", iteration, attempt=2) == []
    assert bench.report("00000", 5, attempt=2) == [Go(trial="00000", attempt=2, credit=1, upto=6)]


def test_a_checkpoint_whose_report_was_lost_with_its_worker_is_not_restored_from() -> None:
    bench = Bench()
    bench.report("00000", 1, saved="00000/1-1")
    bench.save("00000", 2)
    bench.lose("00000")
    assert bench.restart().restore_from == "00000/1-1"


def test_a_checkpoint_that_came_before_its_report_is_restored_from_after_it() -> None:
    bench = Bench()
    bench.report("00000", 1)
    bench.save("00000", 2)
    bench.report("00000", 2)
    bench.lose("00000")
    assert bench.restart().restore_from == "00000/2-1"


def _exploit(source: SavedState | None, sweep: Any, trial: Trial) -> Verdict:
    assert source is not None
    sweep.exploit(trial, config={"x": 2}, source=source, tag="t", why="worse", assigned={"x": 2})
    return Verdict(SchedulerDecision.NOOP, "")


def test_a_clone_of_a_checkpoint_that_is_asked_for_starts_when_it_is_committed() -> None:
    bench = Bench()
    found: list[SavedState] = []

    def save(sweep: Any, trial: Trial) -> Verdict:
        found.append(sweep.save(trial))
        return Verdict(SchedulerDecision.CONTINUE)

    bench.scheduler.acts["00000", 3] = save
    bench.scheduler.acts["00001", 1] = lambda sweep, trial: _exploit(found[0], sweep, trial)
    bench.report("00000", 1)
    bench.report("00000", 2)
    assert bench.report("00000", 3) == [Go(trial="00000", attempt=1, credit=1, saves=True, upto=4)]
    assert bench.report("00001", 1) == [Halt(trial="00001", attempt=1)]
    bench.apply(AttemptEnded(trial="00001", attempt=1, how=AttemptOutcome.HALTED))
    assert not bench.core.choose(lambda _: True, 1.0)
    bench.save("00000", 3)
    start = bench.restart()
    assert (start.trial, start.config, start.restore_from, start.iteration) == ("00001", {"x": 2}, "00000/3-1", 3)
    assert bench.core.sweep.trials["00001"].iteration == 3


def test_a_clone_does_not_take_its_old_checkpoint_of_the_same_iteration_for_its_own() -> None:
    bench = Bench()
    bench.report("00001", 1, saved="00001/1-1")
    bench.report("00001", 2, saved="00001/2-1")
    bench.report("00000", 1, saved="00000/1-1")
    source = SavedState(trial="00000", iteration=1, path="00000/1-1")
    bench.scheduler.acts["00001", 3] = lambda sweep, trial: _exploit(source, sweep, trial)
    bench.report("00001", 3)
    bench.apply(AttemptEnded(trial="00001", attempt=1, how=AttemptOutcome.HALTED))
    assert bench.restart().restore_from == "00000/1-1"
    bench.scheduler.acts["00001", 2] = lambda sweep, trial: Verdict(SchedulerDecision.PAUSE, "rest")
    assert bench.report("00001", 2, attempt=2) == [Halt(trial="00001", attempt=2, saves=True)]


def test_a_checkpoint_that_a_clone_still_needs_is_kept_until_the_clone_has_its_own() -> None:
    bench = Bench(keep=RetentionPolicy(num_to_keep=1))
    bench.report("00000", 1, saved="00000/1-1")
    source = SavedState(trial="00000", iteration=1, path="00000/1-1")
    bench.scheduler.acts["00001", 1] = lambda sweep, trial: _exploit(source, sweep, trial)
    bench.report("00001", 1)
    bench.apply(AttemptEnded(trial="00001", attempt=1, how=AttemptOutcome.HALTED))
    assert Drop("00000/1-1") not in bench.report("00000", 2, saved="00000/2-1")
    bench.restart()
    assert Drop("00000/1-1") in bench.report("00001", 2, attempt=2, saved="00001/2-2")


def test_a_save_that_never_comes_does_not_hold_a_clone_up() -> None:
    bench = Bench()
    bench.report("00000", 1, saved="00000/1-1")
    found: list[SavedState] = []

    def save(sweep: Any, trial: Trial) -> Verdict:
        found.append(sweep.save(trial))
        return Verdict(SchedulerDecision.CONTINUE)

    bench.scheduler.acts["00000", 2] = save
    bench.report("00000", 2)
    bench.scheduler.acts["00001", 1] = lambda sweep, trial: _exploit(found[0], sweep, trial)
    bench.report("00001", 1)
    bench.apply(AttemptEnded(trial="00001", attempt=1, how=AttemptOutcome.HALTED))
    bench.report("00000", 3)
    assert bench.restart().restore_from == "00000/1-1"


def test_the_worker_that_outlived_its_head_is_told_again() -> None:
    bench = Bench()
    bench.report("00000", 1)
    bench.core.reports.reattached("00000")
    assert bench.core.take()[1] == [Go(trial="00000", attempt=1, credit=0, upto=2)]
    bench.scheduler.acts["00000", 2] = lambda sweep, trial: Verdict(SchedulerDecision.STOP, "bad")
    assert bench.report("00000", 2) == [Halt(trial="00000", attempt=1)]
    bench.core.reports.reattached("00000")
    assert bench.core.take()[1] == [Halt(trial="00000", attempt=1)]
    assert bench.core.sweep.trials["00000"].status is TrialStatus.TERMINATED


def test_a_trial_that_never_saved_cannot_be_taken_over_and_that_is_said() -> None:
    bench = Bench()

    def exploit(sweep: Any, trial: Trial) -> Verdict:
        source = sweep.save(sweep.trials["00000"])
        sweep.exploit(trial, config={"x": 2}, source=source, tag="", why="it is worse", assigned={"x": 2})
        return Verdict(SchedulerDecision.NOOP)

    bench.report("00000", 1)
    bench.scheduler.acts["00001", 1] = exploit
    bench.report("00001", 1)
    bench.apply(AttemptEnded(trial="00001", attempt=1, how=AttemptOutcome.HALTED))
    for iteration in (2, 3):
        bench.report("00000", iteration)
    assert bench.restart().restore_from == ""
    said = "trial 00000 never saved a checkpoint, so no trial can continue from it: pass checkpoint= to tune.report"
    assert bench.core.state.notes == [said]
    kind, data = bench.chosen
    assert (kind, data["why"]) == ("trial-chosen", said)


def test_resources_cost_from_the_start_of_an_attempt_to_its_end() -> None:
    bench = Bench(max_cost=1.0, prices={"CPU": 3600.0 / 100})
    core = bench.core
    assert not core.meters_exceeded(1000.0), "chosen, and still in somebody's queue"
    core.apply(AttemptStarted(trial="00000", attempt=1, slot="s"), 1000.0)
    assert not core.meters_exceeded(1099.0)
    core.apply(AttemptEnded(trial="00000", attempt=1, how=AttemptOutcome.DONE), 1099.0)
    assert not core.meters_exceeded(9999.0), "nothing runs"
    core.apply(AttemptStarted(trial="00001", attempt=1, slot="s"), 2000.0)
    assert core.meters_exceeded(2001.5) == "the sweep has cost 1"
    core.apply(HeadOpened(number=2, host="h", pid=1), 3000.0)
    assert not core.meters_exceeded(3000.5), "time without a head is in no budget"


def _notice(trial: str = "", attempt: int = 0) -> SlotNoticed:
    return SlotNoticed(slot="s", host="h", gone_at=7.0, why="taken", trial=trial, attempt=attempt)


def test_a_notice_lets_the_trial_save_now_and_go_on_from_there_uncounted() -> None:
    bench = Bench(max_interruptions=0)
    bench.report("00000", 1)
    assert bench.apply(_notice("00000", 1)) == [Halt(trial="00000", attempt=1, saves=True)]
    assert [kind for kind, _ in bench.lines] == ["slot-noticed"]
    assert bench.apply(_notice("00000", 1)) == [], "a repeated notice orders nothing again"
    bench.save("00000", 1)
    bench.apply(AttemptEnded(trial="00000", attempt=1, how=AttemptOutcome.HALTED))
    start = bench.restart()
    assert (start.trial, start.restore_from, start.iteration) == ("00000", "00000/1-1", 1)
    trial = bench.core.state.table.trials["00000"]
    assert (trial.num_failures, trial.num_interruptions) == (0, 0)


def test_a_machine_that_goes_before_the_trial_has_saved_is_no_interruption() -> None:
    bench = Bench(max_interruptions=0)
    bench.report("00000", 1, saved="00000/1-1")
    bench.report("00000", 2)
    bench.apply(_notice("00000", 1))
    bench.lose("00000")
    start = bench.restart()
    assert (start.restore_from, start.iteration) == ("00000/1-1", 1)
    assert bench.core.state.table.trials["00000"].num_interruptions == 0
    bench.lose("00000", attempt=2)
    assert bench.core.state.table.trials["00000"].status is TrialStatus.ERROR, "the next loss has no notice"


def test_a_notice_to_an_idle_slot_or_an_old_attempt_changes_nothing() -> None:
    bench = Bench()
    assert bench.apply(_notice()) == []
    assert bench.apply(_notice("00000", 9)) == []
