"""Callbacks in the head: what they see and when, and that they can ask for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import Counting, here, quiet
from windlass import tune
from windlass.tune.logger import LoggerCallback


class Noting(tune.Callback):
    """Notes every call with what matters of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        self.calls.append(("setup", stop, num_samples))

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("start", trial.trial_id, str(trial), trial.config["x"]))

    def on_trial_restore(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("restore", trial.trial_id))

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        self.calls.append(("result", trial.trial_id, result["count"], result["config"] == trial.config, len(trials)))

    def on_checkpoint(self, iteration: int, trials: Any, trial: Any, checkpoint: Any, **info: Any) -> None:
        self.calls.append(("checkpoint", trial.trial_id, Path(checkpoint.path).name))

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("complete", trial.trial_id, trial.status.value, trial.last_result["count"]))

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("recover", trial.trial_id))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("error", trial.trial_id, trial.status.value))

    def on_experiment_end(self, trials: Any, **info: Any) -> None:
        self.calls.append(("end", [trial.status.value for trial in trials]))


def run(folder: Path, callback: Any, space: dict[str, Any], **settings: Any) -> None:
    """Two steps of each trial, with a callback."""
    checkpoints = tune.CheckpointConfig(checkpoint_at_end=False)
    config = quiet(folder, callbacks=[callback], stop={"count": 2}, checkpoint_config=checkpoints, **settings)
    tune.Tuner(Counting, param_space=space, tune_config=here(), run_config=config).fit()


def test_a_callback_sees_all_of_a_trial_in_order(tmp_path: Path) -> None:
    callback = Noting()
    run(tmp_path, callback, {"x": tune.grid_search([7, 8])})
    assert callback.calls[0] == ("setup", {"count": 2}, 1)
    assert [call for call in callback.calls if call[1] == "00000"] == [
        ("start", "00000", "Counting_00000", 7),
        ("result", "00000", 1, True, callback.calls[2][4]),
        ("result", "00000", 2, True, callback.calls[2][4]),
        ("complete", "00000", "TERMINATED", 2),
    ]
    assert callback.calls[-1] == ("end", ["TERMINATED", "TERMINATED"])


def test_failures_are_told_apart(tmp_path: Path) -> None:
    callback = Noting()
    run(tmp_path, callback, {"fails_at": 2, "x": 0}, failure_config=tune.FailureConfig(max_failures=1))
    told = [call[0] for call in callback.calls if call[1] == "00000"]
    assert told == ["start", "result", "recover", "start", "error"], "a result that is repeated is not told again"


def test_a_callback_can_ask_for_a_checkpoint(tmp_path: Path) -> None:
    class Saving(Noting):
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            if result["count"] == 1:
                result["should_checkpoint"] = True

    callback = Saving()
    run(tmp_path, callback, {"x": 0})
    assert [call for call in callback.calls if call[0] == "checkpoint"] == [("checkpoint", "00000", "000001-1")]


def test_logger_callbacks_get_their_own_methods(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []

    class Logging(LoggerCallback):
        def log_trial_start(self, trial: Any) -> None:
            calls.append(("start", trial.trial_id))

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            calls.append(("result", result["count"]))

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            calls.append(("end", failed))

    run(tmp_path, Logging(), {"x": 0})
    assert calls == [("start", "00000"), ("result", 1), ("result", 2), ("end", False)]


def test_a_callback_that_raises_ends_the_sweep(tmp_path: Path) -> None:
    class Broken(tune.Callback):
        def on_trial_result(self, **info: Any) -> None:  # type: ignore[override]
            raise ValueError("a bug of the callback")

    with pytest.raises(ValueError, match="a bug of the callback"):
        run(tmp_path, Broken(), {"x": 0})


def test_names_of_trials_are_the_creators(tmp_path: Path) -> None:
    callback = Noting()
    config = here(trial_name_creator=lambda trial: f"{trial.trainable_name}-x{trial.config['x']}")
    run_config = quiet(tmp_path, callbacks=[callback], stop={"count": 1})
    tune.Tuner(Counting, param_space={"x": 5}, tune_config=config, run_config=run_config).fit()
    assert callback.calls[1][:3] == ("start", "00000", "Counting-x5")
