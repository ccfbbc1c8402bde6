"""tune.run, from Ray Tune's first published form to its newest, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import Counting, bowl
from windlass import tune
from windlass.core.errors import UsageError
from windlass.tune.classic import TuneError

QUIET: dict[str, Any] = {"verbose": 0, "executor": "in-process"}


class FirstForm(tune.Trainable):
    """A trainable as the first published form had it."""

    def _setup(self, config: dict[str, Any]) -> None:
        self.x = 0.0

    def _train(self) -> dict[str, Any]:
        self.x += self.config["lr"]
        return {"mean_accuracy": self.x}

    def _save(self, checkpoint_dir: str) -> str:
        path = Path(checkpoint_dir, "x")
        path.write_text(repr(self.x))
        return str(path)

    def _restore(self, checkpoint: str) -> None:
        self.x = float(Path(checkpoint).read_text())

    def _stop(self) -> None:
        self.x = -1.0


def test_the_first_published_form(tmp_path: Path) -> None:
    analysis = tune.run(
        FirstForm,
        stop={"training_iteration": 4},
        config={"lr": tune.grid_search([0.1, 0.3, 0.2])},
        checkpoint_freq=2,
        local_dir=str(tmp_path),
        name="first",
        **QUIET,
    )
    assert analysis.get_best_config("mean_accuracy") == {"lr": 0.3}
    frame = analysis.dataframe()
    assert sorted(frame["config/lr"]) == [0.1, 0.2, 0.3]
    assert sorted(frame["mean_accuracy"].round(6)) == [0.4, 0.8, 1.2]
    kept = sorted(path.name for path in (tmp_path / "first" / "checkpoints" / "00000").iterdir())
    assert kept == ["000002-1", "000004-1"]


def test_the_newest_form(tmp_path: Path) -> None:
    analysis = tune.run(
        bowl,
        name="new",
        storage_path=tmp_path,
        config={"x": tune.uniform(0, 10)},
        metric="loss",
        mode="min",
        num_samples=5,
        scheduler="fifo",
        search_alg="random",
        resources_per_trial={"cpu": 1},
        max_concurrent_trials=2,
        **QUIET,
    )
    assert len(analysis.trials) == 5
    assert analysis.best_result["loss"] == min(trial.last_result["loss"] for trial in analysis.trials)
    assert analysis.best_config == {"x": analysis.best_trial.config["x"]}


def test_a_registered_name_and_an_experiment(tmp_path: Path) -> None:
    tune.register_trainable("counting", Counting)
    experiment = tune.Experiment("one", "counting", stop={"training_iteration": 2}, config={"x": 3}, local_dir=tmp_path)
    assert tune.run(experiment, **QUIET).trials[0].last_result["score"] == 6
    spec = {"run": "counting", "stop": {"training_iteration": 3}, "local_dir": str(tmp_path), "num_samples": 2}
    trials = tune.run_experiments({"two": spec, "three": {**spec, "num_samples": 1}}, **QUIET)
    assert [trial.last_result["count"] for trial in trials] == [3, 3, 3]


def test_a_failed_trial_raises_unless_told_otherwise(tmp_path: Path) -> None:
    settings = {"config": {"fails_at": 1}, "storage_path": tmp_path, **QUIET}
    with pytest.raises(
        TuneError, match="1 of 1 trial failed; the first, 00000: RuntimeError: as it was told"
    ) as caught:
        tune.run(Counting, name="fails", **settings)
    assert caught.value.code == "trial-failed"
    assert tune.run(Counting, name="may", raise_on_failed_trial=False, **settings).trials[0].status == "ERROR"


def test_resume_goes_on_or_begins(tmp_path: Path) -> None:
    heard: list[str] = []

    class Hearing(tune.Callback):
        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            heard.append(trial.trial_id)

    def run(resume: Any, fails_at: int) -> list[Any]:
        config = {"fails_at": tune.grid_search([0, fails_at])}
        analysis = tune.run(
            Counting,
            name="again",
            config=config,
            stop={"training_iteration": 3},
            storage_path=tmp_path,
            resume=resume,
            raise_on_failed_trial=False,
            callbacks=[Hearing()],
            **QUIET,
        )
        return [(trial.status.value, len(trial.history.attempts)) for trial in analysis.trials]

    assert run("AUTO", 2) == [("TERMINATED", 1), ("ERROR", 1)]
    assert run("AUTO", 2) == [("TERMINATED", 1), ("ERROR", 1)]
    heard.clear()
    assert run("AUTO+ERRORED", 2) == [("TERMINATED", 1), ("ERROR", 2)]
    assert heard == ["00001"], "callbacks and executor are those of this call"
    assert run("AUTO+RESTART_ERRORED", 2) == [("TERMINATED", 1), ("ERROR", 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again"]
    with pytest.raises(UsageError, match="invalid resume='MAYBE'"):
        run("MAYBE", 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_sample": 3}, "tune.run has no argument `num_sample`"),
        ({"export_formats": ["onnx"]}, "tune.run(..., export_formats=) is not supported"),
        ({"restore": "/checkpoint"}, "tune.run(..., restore=) is not supported"),
        ({"storage_filesystem": object()}, "tune.run(..., storage_filesystem=) is not supported"),
    ],
)
def test_what_is_unknown_or_not_supported_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tune.run(bowl, **arguments)
    assert caught.value.message == message
    assert caught.value.hint


def test_arguments_of_checkpoints_in_both_forms(tmp_path: Path) -> None:
    def kept(name: str, **settings: Any) -> list[str]:
        tune.run(Counting, name=name, stop={"training_iteration": 5}, storage_path=tmp_path, **settings, **QUIET)
        folder = tmp_path / name / "checkpoints" / "00000"
        return sorted(path.name.partition("-")[0] for path in folder.iterdir()) if folder.exists() else []

    old = {"checkpoint_freq": 1, "keep_checkpoints_num": 2, "checkpoint_score_attr": "min-count"}
    new = tune.CheckpointConfig(2, "count", "min", 1)
    assert kept("old", **old) == kept("new", checkpoint_config=new) == ["000001", "000002", "000005"]
    assert kept("none") == []
    assert kept("end", checkpoint_at_end=True) == ["000005"]
