from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tune.results.journals import Journal, pbt_journal, random_journal
from windlass.tune.results import BestTrialError, MetricError, TrialMissingError
from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.results.grid import ResultGrid
from windlass.tune.results.result import Result


def grid_of(journal: Journal) -> ResultGrid:
    return ResultGrid(ExperimentAnalysis(journal.history, folder="/sweep"))


def two_trials() -> Journal:
    """Trial 0 ends better, trial 1 was better in between."""
    journal = Journal()
    for losses in ([3.0, 2.0, 1.0], [0.5, 4.0, 5.0]):
        trial = journal.suggest({"lr": losses[0]})
        journal.start(trial)
        for iteration, loss in enumerate(losses, 1):
            journal.report(trial, iteration, loss=loss)
        journal.end(trial)
    return journal


@pytest.mark.parametrize(
    ("scope", "mode", "best"),
    [
        ("last", "min", 0),
        ("all", "min", 1),
        ("avg", "min", 0),
        ("last", "max", 1),
        ("all", "max", 1),
        ("avg", "max", 1),
    ],
)
def test_scopes_choose_what_they_say(scope: str, mode: str, best: int) -> None:
    found = grid_of(two_trials()).get_best_result("loss", mode, scope)
    assert found.trial.trial_id == f"{best:05d}"


def test_the_goal_of_the_sweep_is_the_default() -> None:
    grid = grid_of(two_trials())
    assert grid.get_best_result().trial.trial_id == "00000"
    assert grid.analysis.best_config == {"lr": 3.0}
    assert grid.analysis.best_result["loss"] == 1.0


def test_a_result_holds_what_ray_fills_in() -> None:
    result = grid_of(random_journal())[4]  # restarted from its checkpoint of iteration 2
    metrics = result.metrics
    assert metrics["config"] == result.config
    assert metrics["trial_id"] == "00004"
    assert metrics["hostname"] == "node1"
    assert metrics["pid"] == 104
    assert metrics["training_iteration"] == 3
    assert metrics["iterations_since_restore"] == 1
    assert metrics["time_this_iter_s"] == pytest.approx(1.5)
    assert metrics["time_since_restore"] == pytest.approx(1.5)
    assert metrics["time_total_s"] == pytest.approx(4.5)
    assert metrics["done"] is False
    assert metrics["experiment_tag"].startswith("4_act=relu,lr=0.0008,layers=")


def test_nested_metrics_are_found_in_both_ways() -> None:
    metrics = grid_of(random_journal())[0].metrics
    assert metrics["eval"]["accuracy"] == metrics["eval/accuracy"] == metrics.get("eval")["accuracy"]
    assert metrics.get("evil", 7) == 7
    with pytest.raises(KeyError):
        metrics["evil"]


def test_nan_is_never_the_best_unless_asked_for() -> None:
    journal = Journal()
    for loss in (math.nan, 2.0, -math.inf):
        trial = journal.suggest({"lr": 0.1})
        journal.start(trial)
        journal.report(trial, 1, loss=loss)
    grid = grid_of(journal)
    assert grid.get_best_result().trial.trial_id == "00001"
    assert grid.get_best_result("loss", "min", filter_nan_and_inf=False).trial.trial_id == "00000"


def test_an_unknown_metric_names_what_was_reported() -> None:
    with pytest.raises(RuntimeError) as caught:
        grid_of(two_trials()).get_best_result("los", "min")
    assert isinstance(caught.value, BestTrialError)
    assert "'los'" in caught.value.message
    assert "loss" in caught.value.hint


def test_a_missing_mode_or_scope_is_refused() -> None:
    grid = grid_of(two_trials())
    with pytest.raises(ValueError, match="no mode was given") as caught:
        ExperimentAnalysis(Journal(metrics=(), modes=()).history)._mode(None, "loss")
    assert isinstance(caught.value, MetricError)
    with pytest.raises(MetricError, match="scope 'first'"):
        grid.get_best_result(scope="first")
    with pytest.raises(MetricError, match="mode 'best'"):
        grid.get_best_result("loss", "best")


def test_a_single_trial_is_the_best_whatever_it_reported() -> None:
    journal = Journal(metrics=(), modes=())
    journal.suggest({"lr": 0.1})
    assert grid_of(journal).get_best_result().metrics == {}


def test_errors_are_the_trials_own_tracebacks() -> None:
    grid = grid_of(random_journal())
    assert (grid.num_errors, grid.num_terminated, len(grid)) == (1, 6, 8)
    (error,) = grid.errors
    assert (error.trial_id, error.kind, error.last_line) == ("00005", "ValueError", "ValueError: bad lr")
    assert str(error).startswith("Traceback")
    assert grid[5].error is not None
    assert grid[0].error is None


def test_indexing_is_that_of_a_sequence() -> None:
    grid = grid_of(random_journal())
    assert [result.trial.trial_id for result in grid[1:3]] == ["00001", "00002"]
    assert grid[-1].trial.trial_id == "00007"
    assert grid[0] is grid[0]
    with pytest.raises(IndexError):
        grid[8]
    assert len(list(grid)) == 8
    assert "00007" in repr(grid)


def test_checkpoints_come_with_their_metrics_and_in_order_of_score() -> None:
    journal = Journal(num_to_keep=2, score_attribute="loss", order="min")
    trial = journal.suggest({"lr": 0.1})
    journal.start(trial)
    for iteration, loss in enumerate([0.3, 0.1, 0.2], 1):
        journal.report(trial, iteration, loss=loss)
        journal.save(trial, iteration)
    (result,) = grid_of(journal)
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [0.2, 0.1]
    assert result.checkpoint is not None
    assert result.checkpoint.path == "/sweep/checkpoints/00000/000003-1"
    assert result.get_best_checkpoint("loss", "min").path.endswith("000002-1")
    assert result.get_best_checkpoint("training_iteration", "max").path.endswith("000003-1")
    with pytest.raises(MetricError, match="'accuracy'"):
        result.get_best_checkpoint("accuracy", "max")
    journal.add("checkpoint-dropped", trial=trial, path="checkpoints/00000/000002-1")
    assert grid_of(journal)[0].get_best_checkpoint("loss", "min").path.endswith("000003-1")


def test_a_trial_without_checkpoints_says_how_to_get_some() -> None:
    with pytest.raises(BestTrialError, match="has no checkpoint"):
        grid_of(two_trials())[0].get_best_checkpoint("loss", "min")


def test_reports_before_an_exploit_keep_their_configuration() -> None:
    grid = grid_of(pbt_journal())
    trial = grid.analysis.trial("3").history
    frame = grid[3].metrics_dataframe
    exploits = [made for made in trial.decisions if made.decision == "exploit"]
    assert exploits
    assert frame["config/lr"].iloc[0] == exploits[0].facts["old_config"]["lr"]
    assert frame["config/lr"].iloc[-1] == exploits[-1].facts["old_config"]["lr"]
    assert frame["config/lr"].nunique() == len(exploits)
    assert grid[3].config["lr"] == exploits[-1].facts["config"]["lr"]
    assert frame["experiment_tag"].iloc[0].startswith("3_lr=")


def test_a_trial_that_begins_anew_forgets_its_reports() -> None:
    journal = two_trials()
    journal.add("sweep-requested", what="resume", acts=[{"act": "restart", "trial": "00001"}])
    journal.start("00001")
    journal.report("00001", 1, loss=0.25)
    frame = grid_of(journal)[1].metrics_dataframe
    assert list(frame["loss"]) == [0.25]


def test_a_result_is_found_by_its_folder(tmp_path: Path) -> None:
    two_trials().append(tmp_path)
    assert Result.from_path(tmp_path / "trials" / "00001").metrics["loss"] == 5.0
    with pytest.raises(TrialMissingError, match="'00009'"):
        Result.from_path(tmp_path / "trials" / "00009")


def test_the_pareto_front_of_a_sweep_and_of_any_two_metrics() -> None:
    journal = Journal(metrics=("loss", "size"), modes=("min", "min"))
    for loss, size in [(1.0, 9.0), (2.0, 4.0), (3.0, 5.0), (4.0, 1.0), (2.0, 4.0), (math.nan, 0.0)]:
        trial = journal.suggest({"x": loss})
        journal.start(trial)
        journal.report(trial, 1, loss=loss, size=size)
    grid = grid_of(journal)
    assert [result.trial.trial_id for result in grid.pareto_front()] == ["00000", "00001", "00004", "00003"]
    assert [one.trial.trial_id for one in grid.pareto_front(["loss", "size"], ["max", "max"])] == [
        "00003",
        "00002",
        "00000",
    ]
    with pytest.raises(MetricError, match="a mode for each"):
        grid.pareto_front(["loss", "size"])


def test_pandas_is_imported_for_frames_alone(tmp_path: Path) -> None:
    two_trials().append(tmp_path)
    program = (
        "import sys; from windlass.tune import ResultGrid\n"
        f"grid = ResultGrid({str(tmp_path)!r}); grid.get_best_result().metrics; grid.errors; repr(grid)\n"
        "print(sorted({'pandas', 'numpy', 'matplotlib', 'optuna', 'ray', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
