"""What ends trials and sweeps, and what is refused at once: whole sweeps under the virtual clock."""

from __future__ import annotations

import functools
import json
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sim.sweeps import Rising, Sweep, settings, world
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.controller.controller import Controller
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.controller.requests import ask
from windlass.tune.controller.restore import Extension
from windlass.tune.controller.settings import Resume, RetentionPolicy
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers import FIFO, AsyncHyperBandScheduler, MedianStoppingRule, ResourceChangingScheduler
from windlass.tune.schedulers.asha_promotion import PromotionASHA
from windlass.tune.search.protocol import Objectives
from windlass.tune.search.registry import as_searcher
from windlass.tune.stopper import ExperimentPlateauStopper, TrialPlateauStopper
from windlass.tune.stopper.registry import as_stopper
from windlass.tune.trial import Metrics, Resources, TrialStatus


class _Plain(Rising):
    """Metrics that a test chooses."""

    def __init__(self, metrics: Metrics, num_steps: int = 3) -> None:
        super().__init__(num_steps)
        self._metrics = metrics

    def step(self, state: float, config: Mapping[str, Any], iteration: int) -> tuple[float, Metrics]:
        return state, {**self._metrics, "done": iteration >= self._num_steps}


def _statuses(history: History) -> list[str]:
    return [trial.status.value for trial in history.trials.values()]


def test_an_unknown_metric_names_what_was_reported(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(curve=_Plain({"loss": 1.0})))
    with pytest.raises(UsageError) as caught:
        sweep.run()
    assert caught.value.code == "unknown-metric"
    assert "no trial reports `score`; the first report has `loss`, `done`" in str(caught.value)
    sweep.world.kill_head()
    assert read_history(tmp_path).num_reports == 0


def test_nan_and_infinite_scores_are_journalled_and_never_best(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(curve=_Plain({"score": math.nan, "other": math.inf})))
    controller = sweep.controller()
    assert controller.run().is_over
    assert all(trial.best is None for trial in controller.core.sweep.trials.values())
    last = read_history(tmp_path).trials["00000"].last
    assert last is not None
    assert math.isnan(last["score"])
    assert math.isinf(last["other"])
    assert sweep.run().is_over  # NaN is not equal to itself, and the replay is content


def test_a_misspelt_bound_of_stop_names_what_was_reported(tmp_path: Path) -> None:
    stopper = as_stopper([{"training_iteration": 9, "done": 1}, {"los": 0.1}])
    sweep = Sweep(tmp_path, world(curve=_Plain({"score": 1.0, "loss": 1.0})), stopper=lambda: stopper)
    with pytest.raises(UsageError) as caught:
        sweep.run()
    assert caught.value.code == "unknown-metric"
    assert "no trial reports `los`; the first report has" in caught.value.message


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: AsyncHyperBandScheduler(time_attr="epok"),
        lambda: PromotionASHA(time_attr="epok"),
        lambda: MedianStoppingRule(time_attr="epok"),
        lambda: ResourceChangingScheduler(AsyncHyperBandScheduler(time_attr="epok")),
    ],
)
def test_a_misspelt_time_of_a_scheduler_names_what_was_reported(tmp_path: Path, scheduler: Any) -> None:
    sweep = Sweep(tmp_path, world(curve=_Plain({"score": 1.0, "epoch": 1})), scheduler=scheduler)
    with pytest.raises(UsageError) as caught:
        sweep.run()
    assert caught.value.code == "unknown-metric"
    assert "no trial reports `epok`; the first report has `score`, `epoch`" in caught.value.message
    assert "no trial reports `epok`" in json.loads(SweepFolder(tmp_path).head_note.read_bytes())["error"]


@pytest.mark.parametrize("stopper", [TrialPlateauStopper("los"), ExperimentPlateauStopper("los")])
def test_a_misspelt_metric_of_a_stopper_names_what_was_reported(tmp_path: Path, stopper: Any) -> None:
    sweep = Sweep(tmp_path, world(curve=_Plain({"score": 1.0, "loss": 1.0})), stopper=lambda: stopper)
    with pytest.raises(UsageError, match="no trial reports `los`"):
        sweep.run()


def test_a_metric_named_twice_is_refused(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(), scheduler=lambda: AsyncHyperBandScheduler(metric="loss", mode="max"))
    with pytest.raises(UsageError) as caught:
        sweep.run()
    assert caught.value.code == "conflicting-options"


def test_a_failed_trial_goes_to_the_end_of_the_queue_and_is_given_up_in_the_end(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1, Rising(4, fails_below=2.0)), settings=settings(num_samples=2, max_failures=1))
    assert sweep.run().is_over
    history = read_history(tmp_path)
    assert _statuses(history) == ["ERROR", "ERROR"]
    assert [trial.num_failures for trial in history.trials.values()] == [2, 2]
    order = [record.data["trial"] for record in sweep.records() if record.kind == "trial-chosen"]
    assert order[0] == "00000"
    assert sorted(order) == ["00000", "00000", "00001", "00001"]
    assert "TrialError" in history.trials["00000"].error


def test_fail_fast_ends_the_sweep_and_leaves_the_others_resumable(tmp_path: Path) -> None:
    sweep = Sweep(
        tmp_path,
        world(1, 3, Rising(6, fails_below=0.2), checkpoint_every=1),
        settings=settings(num_samples=6, fail_fast=True),
    )
    ending = sweep.run()
    history = read_history(tmp_path)
    assert ending.failed in history.trials
    assert history.trials[ending.failed].status is TrialStatus.ERROR
    assert "PENDING" in _statuses(history)
    again = sweep.run(resume=Resume())
    assert again.is_over


def test_a_lost_worker_costs_no_failure_and_too_many_end_the_trial(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1), settings=settings(num_samples=1, max_interruptions=1))
    for seconds in (3.0, 9.0):
        sweep.world.at(seconds, lambda: sweep.world.lose_worker("node0/0"))
    assert sweep.run().is_over
    trial = read_history(tmp_path).trials["00000"]
    assert (trial.status, trial.num_failures, trial.num_interruptions) == (TrialStatus.ERROR, 0, 2)
    assert "it lost its worker 2 times" in trial.why


def test_repeats_after_a_lost_worker_count_once(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1, checkpoint_every=4), settings=settings(num_samples=1))
    sweep.world.at(13.0, lambda: sweep.world.lose_worker("node0/0"))
    assert sweep.run().is_over
    trial = read_history(tmp_path).trials["00000"]
    assert [report.iteration for report in trial.reports] == list(range(1, 10))
    assert trial.attempts[-1].restore is not None
    assert trial.attempts[-1].restore.iteration == 4


def test_resources_that_never_fit_are_refused_at_once(tmp_path: Path) -> None:
    shape = Resources(bundles=({"CPU": 64.0},))
    with pytest.raises(PreconditionError) as caught:
        Sweep(tmp_path, world(), settings=settings(resources=shape)).run()
    assert caught.value.code == "does-not-fit"
    assert "64 CPU" in str(caught.value)


def test_the_time_budget_counts_only_while_a_head_lives(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1), settings=settings(num_samples=50, time_budget_s=40.0))
    controller = sweep.controller()
    sweep.on_turn = None
    ending = controller.run()
    assert "time budget of 40 s" in ending.why
    history = read_history(tmp_path)
    assert 40.0 <= history.last_at - history.created_at <= 42.0
    assert set(_statuses(history)) == {"TERMINATED"}


def test_gpu_hours_and_cost_end_a_sweep(tmp_path: Path) -> None:
    shape = Resources(bundles=({"CPU": 1.0, "GPU": 2.0},))
    more = {"num_samples": 500, "resources": shape}
    sweep = Sweep(tmp_path / "gpu", world(1, 1), settings=settings(gpu_hours=0.1, **more))
    assert "0.1 GPU-hours" in sweep.run().why
    history = read_history(tmp_path / "gpu")
    assert 170.0 < history.last_at - history.created_at < 190.0
    sweep = Sweep(tmp_path / "cost", world(1, 1), settings=settings(max_cost=1.0, prices={"GPU": 10.0}, **more))
    assert "has cost 1" in sweep.run().why


def test_max_trials_and_max_concurrent(tmp_path: Path) -> None:
    most: list[int] = []
    sweep = Sweep(tmp_path, world(2, 4), settings=settings(num_samples=50, max_trials=7, max_concurrent=3))
    sweep.on_turn = lambda controller: most.append(len(controller.core.state.open_attempts))
    assert sweep.run().is_over
    assert len(read_history(tmp_path).trials) == 7
    assert max(most) == 3


def test_the_best_checkpoints_and_the_newest_stay(tmp_path: Path) -> None:
    keep = RetentionPolicy(num_to_keep=2, score_attribute="score", order="min")
    sweep = Sweep(tmp_path, world(1, 1, checkpoint_every=1), settings=settings(num_samples=1, keep=keep))
    assert sweep.run().is_over
    trial = read_history(tmp_path).trials["00000"]
    assert [saved.iteration for saved in trial.checkpoints] == [1, 2, 9]
    assert sorted(sweep.world.checkpoints) == [saved.path for saved in trial.checkpoints]


def test_checkpoints_without_the_metric_that_ranks_them_are_told_once(tmp_path: Path) -> None:
    keep = RetentionPolicy(num_to_keep=2, score_attribute="acuracy")
    sweep = Sweep(tmp_path, world(1, 1, checkpoint_every=1), settings=settings(num_samples=2, keep=keep))
    controller = sweep.controller()
    assert controller.run().is_over
    (note,) = controller.core.state.notes
    assert note == "no checkpoint of trial 00000 has a numeric `acuracy`: the newest are kept, not the best"


def test_an_interrupt_saves_and_the_sweep_goes_on_later(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 2))

    def interrupt(controller: Controller) -> None:
        if controller.core.num_reports == 5:
            controller._signals._take(signal.SIGTERM, None)
            sweep.on_turn = None

    sweep.on_turn = interrupt
    ending = sweep.run()
    assert not ending.is_over
    assert "SIGTERM" in ending.why
    assert sweep.run().is_over
    history = read_history(tmp_path)
    assert set(_statuses(history)) == {"TERMINATED"}
    assert [report.iteration for report in history.trials["00000"].reports] == list(range(1, 10))
    assert any(attempt.restore is not None for attempt in history.trials["00000"].attempts)


def test_a_request_of_another_process_stops_a_trial_and_a_slip_of_it_does_no_harm(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1), settings=settings(num_samples=2))

    def stop(controller: Controller) -> None:
        if controller.core.num_reports == 2:
            sweep.on_turn = None
            ask(SweepFolder(tmp_path), "stop-trial", trial="00077")
            ask(SweepFolder(tmp_path), "stop-trial", trial="00000", why="it is hopeless")

    controller = sweep.controller(on_turn=stop)
    assert controller.run().is_over
    history = read_history(tmp_path)
    assert history.trials["00000"].why == "it is hopeless"
    assert history.trials["00000"].iteration < 9
    assert history.trials["00001"].iteration == 9
    assert "no trial `00077`" in (tmp_path / "journal/head.json").read_text()
    assert not list((tmp_path / "control").iterdir())


def test_a_finished_sweep_is_extended_by_more_samples(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(), settings=settings(num_samples=3))
    assert sweep.run().is_over
    assert sweep.run().is_over
    assert len(read_history(tmp_path).trials) == 3
    assert sweep.run(extend=Extension(settings={"num_samples": 5})).is_over
    history = read_history(tmp_path)
    assert _statuses(history) == ["TERMINATED"] * 5
    assert history.settings is not None
    assert history.settings.num_samples == 5
    assert sweep.run().is_over
    assert len(read_history(tmp_path).trials) == 5
    whole = Sweep(tmp_path / "whole", world(), settings=settings(num_samples=5))
    whole.run()
    configs = [trial.config for trial in read_history(tmp_path / "whole").trials.values()]
    assert [trial.config for trial in history.trials.values()] == configs


def test_failed_trials_are_resumed_and_finished_ones_begun_anew_when_asked(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(1, 1, Rising(4, fails_below=0.3)), settings=settings(num_samples=6))
    sweep.run()
    before = _statuses(read_history(tmp_path))
    assert set(before) == {"ERROR", "TERMINATED"}
    sweep.world.curve = Rising(4)
    sweep.run(resume=Resume(errored="resume"))
    assert set(_statuses(read_history(tmp_path))) == {"TERMINATED"}
    sweep.run(resume=Resume(finished="restart"))
    history = read_history(tmp_path)
    assert set(_statuses(history)) == {"TERMINATED"}
    assert all([r.iteration for r in trial.reports][-4:] == [1, 2, 3, 4] for trial in history.trials.values())


def test_another_scheduler_is_refused_at_a_restore(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world())
    sweep.run()
    sweep.scheduler = AsyncHyperBandScheduler
    with pytest.raises(PreconditionError) as caught:
        sweep.run()
    assert caught.value.code == "sweep-differs"


def test_a_journal_that_would_be_decided_otherwise_is_refused(tmp_path: Path) -> None:
    class Moody(FIFO):
        is_kind = True

        def on_result(self, sweep: Any, trial: Any, result: Metrics) -> Any:
            if not self.is_kind and result["training_iteration"] == 3:
                sweep.stop(trial, "a mood")
            return super().on_result(sweep, trial, result)

    sweep = Sweep(tmp_path, world(), scheduler=Moody)
    sweep.run()
    Moody.is_kind = False
    with pytest.raises(PreconditionError) as caught:
        sweep.run()
    assert caught.value.code == "sweep-journal-differs"


def test_a_scheduler_that_never_resumes_what_it_pauses_is_told(tmp_path: Path) -> None:
    class Sleepy(FIFO):
        def on_result(self, sweep: Any, trial: Any, result: Metrics) -> Any:
            sweep.pause(trial, "it sleeps")
            return super().on_result(sweep, trial, result)

        def choose(self, sweep: Any) -> Any:
            return next((trial for trial in sweep.pending.values() if sweep.may_start(trial)), None)

        def credit(self, sweep: Any, trial: Any) -> int:
            return 1

    with pytest.raises(PreconditionError) as caught:
        Sweep(tmp_path, world(), scheduler=Sleepy).run()
    assert caught.value.code == "sweep-stuck"


class _Scarce:
    """A plug-in that has two suggestions, and then `rest` for ever."""

    def __init__(self, rest: str | None, num: int = 2) -> None:
        self.rest, self.num = rest, num

    def suggest(self, trial_id: str) -> Any:
        return {"x": 0.5, "y": 0.5} if int(trial_id) < self.num else self.rest

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...


def test_a_searcher_that_finishes_early_is_named_where_the_sweep_says_why_it_ended(tmp_path: Path) -> None:
    for num_samples, of in ((8, "2 of 8 trials"), (-1, "2 trials")):
        folder = tmp_path / of.replace(" ", "-")
        sweep = Sweep(folder, world(), searcher=lambda: as_searcher(_Scarce("FINISHED")))
        sweep.settings = settings(num_samples=num_samples)
        assert sweep.run().why == f"all trials have ended (_Scarce ended the search after {of})", of
        assert read_history(folder).ended_why.endswith(f"(_Scarce ended the search after {of})"), of
    sweep = Sweep(tmp_path / "all", world(), searcher=lambda: as_searcher(_Scarce("FINISHED", 8)))
    assert sweep.run().why == "all trials have ended (all samples were suggested)"


def _scarce(num: int) -> Any:
    return as_searcher(_Scarce(None, num))


def test_a_searcher_that_never_suggests_again_ends_the_sweep(tmp_path: Path) -> None:
    for num in (0, 2):
        sweep = Sweep(tmp_path / str(num), world(), searcher=functools.partial(_scarce, num))
        ending = sweep.run()
        assert ending.is_over, num
        said = f"_Scarce suggested nothing for 30 s while no trial was left, after {num} of 8 trials"
        assert ending.why == f"all trials have ended ({said})", num
        assert sweep.run().why == ending.why, num


def test_a_sweep_that_is_there_is_not_begun_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(), settings=settings(objectives=Objectives()))
    controller = sweep.controller()
    sweep.run()
    with pytest.raises(PreconditionError) as caught:
        controller.run()
    assert caught.value.code == "already-exists"


def test_a_sweep_that_was_refused_for_its_metric_can_be_stopped(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, world(curve=_Plain({"loss": 1.0})))
    for _ in range(2):
        with pytest.raises(UsageError, match="no trial reports `score`"):
            sweep.run()
        sweep.world.kill_head()
    ask(SweepFolder(tmp_path), "stop-all", why="a user stopped it")
    assert sweep.run().is_over
    assert read_history(tmp_path).ended_why == "a user stopped it"
