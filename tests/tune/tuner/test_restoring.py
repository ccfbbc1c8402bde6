"""Tuner.restore and Tuner.extend: everything but code comes from the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import Counting, bowl, here, quiet
from windlass import tune
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.tune.controller import controller
from windlass.tune.controller.requests import ask
from windlass.tune.folder import SweepFolder

SPACE = {"x": tune.uniform(0, 10)}
SILENT = tune.RunConfig(verbose=0)


def swept(folder: Path, trainable: Any = bowl, **settings: Any) -> Path:
    """The folder of a finished sweep."""
    config = here(metric="loss", mode="min", **{"num_samples": 3, **settings})
    return Path(
        tune.Tuner(trainable, param_space=SPACE, tune_config=config, run_config=quiet(folder)).fit().experiment_path
    )


def test_a_finished_sweep_is_restored_as_it_is(tmp_path: Path) -> None:
    path = swept(tmp_path)
    before = [(result.config, result.metrics["loss"]) for result in tune.Tuner.restore(path, bowl).get_results()]
    restored = tune.Tuner.restore(str(path), bowl, run_config=SILENT)
    assert [(result.config, result.metrics["loss"]) for result in restored.fit()] == before
    assert all(len(trial.attempts) == 1 for trial in restored.get_results().analysis.history.trials.values())


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_LOOK_EVERY_S", 0.0)

    class Interrupting(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            if trial.trial_id == "00002":
                ask(SweepFolder(tmp_path / "sweep"), "pause")

    config = here(metric="loss", mode="min", num_samples=12)
    run = quiet(tmp_path, callbacks=[Interrupting()])
    results = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=run).fit()
    num_before = results.num_terminated
    assert 3 <= num_before < 12
    rest = tune.Tuner.restore(tmp_path / "sweep", bowl, run_config=SILENT, tune_config=here()).fit()
    assert rest.num_terminated == 12
    starts = [len(trial.attempts) for trial in rest.analysis.history.trials.values()]
    assert starts[:num_before] == [1] * num_before, "no finished trial runs again"


def test_failed_trials_go_on_or_begin_anew(tmp_path: Path) -> None:
    marker = tmp_path / "repaired"

    def train(config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0})
        if not marker.exists():
            raise OSError("broken")
        tune.report({"loss": 0.5})

    path = swept(tmp_path, train)
    assert tune.Tuner.restore(path, train).get_results().num_errors == 3
    marker.touch()
    options: dict[str, Any] = {"run_config": SILENT, "tune_config": here()}
    assert tune.Tuner.restore(path, train, **options).fit().num_errors == 3
    results = tune.Tuner.restore(path, train, restart_errored=True, **options).fit()
    assert (results.num_errors, [result.metrics["loss"] for result in results]) == (0, [0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("scheduler", "searcher"), [("asha", "random"), ("median_stopping_rule", "tpe"), ("hyperband", "random")]
)
def test_scheduler_and_searcher_come_from_the_journal(scheduler: str, searcher: str, tmp_path: Path) -> None:
    config = here(metric="score", mode="max", num_samples=4, scheduler=scheduler, search_alg=searcher)
    run = quiet(tmp_path, stop={"training_iteration": 3})
    tune.Tuner(Counting, param_space=SPACE, tune_config=config, run_config=run).fit()
    extended = tune.Tuner.extend(tmp_path / "sweep", Counting, num_samples=6, tune_config=here(), run_config=SILENT)
    results = extended.fit()
    assert len(results) == 6
    lengths = [result.metrics["training_iteration"] for result in results]
    assert max(lengths) == 3, "the stopper comes from it too"


def test_a_sweep_is_extended_by_samples_stop_and_space(tmp_path: Path) -> None:
    path = swept(tmp_path)
    more = tune.Tuner.extend(
        path,
        bowl,
        num_samples=6,
        stop={"training_iteration": 2},
        param_space={"x": tune.uniform(4, 5)},
        tune_config=here(),
        run_config=SILENT,
    ).fit()
    assert [result.metrics["training_iteration"] for result in more] == [4, 4, 4, 2, 2, 2]
    assert all(4 <= result.config["x"] <= 5 for result in more[3:])
    assert len(tune.Tuner.restore(path, bowl, tune_config=here(), run_config=SILENT).fit()) == 6
    rest = tune.Tuner.extend(path, bowl, num_samples=8, tune_config=here(), run_config=SILENT).fit()
    assert [result.metrics["training_iteration"] for result in rest[6:]] == [2, 2], "the newest stop condition counts"
    assert all(4 <= result.config["x"] <= 5 for result in rest[6:]), "and the newest space"
    assert SILENT.stop is None, "what the caller holds is not changed"


def test_a_timeout_goes_on_where_it_was_and_is_extended(tmp_path: Path) -> None:
    timeout = tune.stopper.TimeoutStopper(50)
    config = here(metric="loss", mode="min", num_samples=2)
    made = tune.Tuner(bowl, param_space=SPACE, tune_config=config, run_config=quiet(tmp_path, stop=timeout))
    path = made.fit().experiment_path
    same = tune.RunConfig(verbose=0, stop=timeout)
    assert len(tune.Tuner.restore(path, bowl, tune_config=here(), run_config=same).fit()) == 2
    other = tune.RunConfig(verbose=0, stop=tune.stopper.TimeoutStopper(60))
    with pytest.raises(UsageError, match=r"TimeoutStopper\(60\) only works for a new sweep; sweep has 50"):
        tune.Tuner.restore(path, bowl, run_config=other)
    more = tune.Tuner.extend(path, bowl, stop=tune.stopper.TimeoutStopper(60), tune_config=here(), run_config=SILENT)
    settings = more.fit().analysis.history.settings
    assert settings is not None
    assert settings.time_budget_s == 60


@pytest.mark.parametrize(
    ("tuning", "run", "name"),
    [
        ({"num_samples": 9}, {}, "num_samples=9"),
        ({"seed": 7}, {}, "seed=7"),
        ({"metric": "score", "mode": "min"}, {}, "metric"),
        ({"reuse": "never"}, {}, "reuse"),
        ({}, {"failure_config": tune.FailureConfig(max_failures=2)}, "max_failures=2"),
        ({}, {"checkpoint_config": tune.CheckpointConfig(num_to_keep=1)}, "num_to_keep=1"),
    ],
)
def test_what_only_a_new_sweep_can_be_told_is_refused(
    tuning: dict[str, Any], run: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = swept(tmp_path)
    configs: dict[str, Any] = {"tune_config": here(**tuning), "run_config": tune.RunConfig(verbose=0, **run)}
    with pytest.raises(UsageError, match=name) as caught:
        tune.Tuner.restore(path, bowl, **configs)
    assert caught.value.code == "unsupported-setting"
    same = here(metric="loss", mode="min", num_samples=3)
    assert len(tune.Tuner.restore(path, bowl, tune_config=same, run_config=SILENT).fit()) == 3


def test_the_folder_may_move(tmp_path: Path) -> None:
    run = quiet(
        tmp_path, stop={"training_iteration": 2}, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)
    )
    tune.Tuner(Counting, param_space=SPACE, tune_config=here(num_samples=2), run_config=run).fit()
    (tmp_path / "sweep").rename(tmp_path / "moved")
    more = tune.Tuner.extend(tmp_path / "moved", Counting, num_samples=3, tune_config=here(), run_config=SILENT).fit()
    checkpoint = more[2].checkpoint
    assert checkpoint is not None
    assert checkpoint.path.startswith(str(tmp_path / "moved"))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = swept(tmp_path)
    assert not tune.Tuner.can_restore(tmp_path / "nothing")
    assert tune.Tuner.can_restore(path)
    with pytest.raises(NotFoundError) as missing:
        tune.Tuner.restore(tmp_path / "nothing", bowl)
    assert missing.value.code == "sweep-not-found"
    with pytest.raises(PreconditionError, match="the sweep sweep ran the trainable bowl, not Counting"):
        tune.Tuner.restore(path, Counting)
    with pytest.raises(UsageError, match="the sweep sweep has a different space"):
        tune.Tuner.restore(path, bowl, param_space={"x": tune.uniform(0, 11)})
    with pytest.raises(PreconditionError) as other:
        tune.Tuner.restore(path, bowl, tune_config=here(scheduler="asha"), run_config=SILENT).fit()
    assert other.value.code == "sweep-differs"


def test_a_space_with_functions_of_no_module_is_given_again(tmp_path: Path) -> None:
    space = {"x": tune.sample_from(lambda spec: 3)}
    config = here(metric="loss", mode="min", num_samples=2)
    tune.Tuner(bowl, param_space=space, tune_config=config, run_config=quiet(tmp_path)).fit()
    options: dict[str, Any] = {"run_config": SILENT, "tune_config": here()}
    assert len(tune.Tuner.restore(tmp_path / "sweep", bowl, param_space=space, **options).fit()) == 2


@pytest.mark.parametrize("more", [{"num_samples": 0}, {"num_samples": "9"}, {"time_budget_s": -4.0}])
def test_an_extension_that_makes_no_sense_is_refused(more: dict[str, Any], tmp_path: Path) -> None:
    path = swept(tmp_path)
    with pytest.raises(UsageError) as caught:
        tune.Tuner.extend(path, bowl, **more)
    assert caught.value.code == "invalid-value"


def test_two_words_on_failed_trials_are_refused(tmp_path: Path) -> None:
    path = swept(tmp_path)
    with pytest.raises(UsageError, match="are mutually exclusive"):
        tune.Tuner.restore(path, bowl, resume_errored=True, restart_errored=True)
    with pytest.raises(UsageError, match="are mutually exclusive"):
        tune.Tuner.restore(path, bowl, restart_errored=True, resume_config=tune.ResumeConfig())


def test_a_file_is_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFoundError, match="there is no sweep"):
        tune.Tuner.restore(tmp_path / "file", bowl)


@pytest.mark.parametrize(("space", "name"), [({"y": 1}, "x"), ({"x": tune.uniform(4, 5), "y": 1}, "y")])
def test_a_space_of_other_names_is_refused(space: dict[str, Any], name: str, tmp_path: Path) -> None:
    path = swept(tmp_path)
    with pytest.raises(UsageError, match=f"`{name}` of the") as caught:
        tune.Tuner.extend(path, bowl, num_samples=9, param_space=space, tune_config=here(), run_config=SILENT)
    assert caught.value.code == "sweep-differs"


def test_an_extension_that_changes_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune.Tuner(bowl, param_space={"x": 1}, tune_config=here(num_samples=2), run_config=quiet(tmp_path)).fit()
    before = (tmp_path / "sweep" / "journal" / "head.wj").read_text().count('"extend"')
    tuner = tune.Tuner.extend(
        tmp_path / "sweep", bowl, num_samples=2, tune_config=here(), run_config=tune.RunConfig(verbose=0)
    )
    assert capsys.readouterr().err == "sweep has num_samples=2 already: nothing changes\n"
    assert len(tuner.fit()) == 2
    assert (tmp_path / "sweep" / "journal" / "head.wj").read_text().count('"extend"') == before
    tune.Tuner.extend(tmp_path / "sweep", bowl, num_samples=3, tune_config=here(), run_config=quiet(tmp_path)).fit()
    assert capsys.readouterr().err == ""
