"""Report callbacks of training libraries: driven as their libraries drive them, by stand-ins where one is not there."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import here, quiet
from windlass import tune
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.integration.reporting import need_library, pick

LIBRARIES = {"xgboost": ("callback",), "lightgbm": (), "keras": ("callbacks",), "lightning": ("pytorch",)}


class Plain:
    """What a library's callback class is at least."""


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, parts in LIBRARIES.items():
        library = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, library)
        for part in parts:
            module = types.ModuleType(f"{name}.{part}")
            module.TrainingCallback = module.Callback = type("Callback", (Plain,), {"on_validation_end": None})  # type: ignore[attr-defined]
            setattr(library, part, module)
            monkeypatch.setitem(sys.modules, module.__name__, module)
    yield
    for name in ("xgboost", "lightgbm", "keras", "pytorch_lightning"):
        sys.modules.pop(f"windlass.tune.integration.{name}", None)


def callback_of(name: str) -> Any:
    """The callback class for a library."""
    return importlib.import_module(f"windlass.tune.integration.{name}").TuneReportCheckpointCallback


class Model:
    """Saves itself to one file; knows its rounds."""

    rounds = 0

    def save_model(self, path: str) -> None:
        Path(path).write_text(str(self.rounds))

    save = save_checkpoint = save_model

    def num_boosted_rounds(self) -> int:
        return self.rounds


def reported(train: Any, folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """What a trial reported, and the contents of its checkpoints."""
    results = tune.Tuner(train, tune_config=here(), run_config=quiet(folder)).fit()
    reports = results.analysis.history.trials["00000"].reports
    contents = []
    for report in reports:
        if report.saved:
            files = [path for path in sorted(Path(report.saved).iterdir()) if path.name != "manifest.json"]
            contents += [f"{path.name}={path.read_text()}" for path in files]
    skipped = ("training_iteration", "time_total_s", "time_this_iter_s")
    return [{k: v for k, v in report.metrics.items() if k not in skipped} for report in reports], contents


def test_xgboost(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        callback, model = callback_of("xgboost")({"loss": "eval-logloss"}, frequency=2), Model()
        for round_ in range(3):
            model.rounds = round_ + 1
            log = {"eval": {"logloss": [9.0] * round_ + [1.0 / (round_ + 1)]}, "train": {"logloss": [0.0]}}
            assert callback.after_iteration(model, round_, log) is False
        assert callback.after_training(model) is model

    found, saved = reported(train, tmp_path)
    assert [one["loss"] for one in found] == [1.0, 0.5, 1 / 3, 1 / 3]
    assert saved == ["model.ubj=2", "model.ubj=3"]


def test_lightgbm(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        callback, model = (
            callback_of("lightgbm")(results_postprocessing_fn=lambda found: {"auc": found["valid-auc-mean"]}),
            Model(),
        )
        for round_ in range(2):
            model.rounds = round_ + 1
            results = [("valid", "auc", 0.5 + round_ / 10, True, 0.01)]
            callback(
                types.SimpleNamespace(model=model, iteration=round_, end_iteration=2, evaluation_result_list=results)
            )

    assert reported(train, tmp_path) == ([{"auc": 0.5}, {"auc": 0.6}], ["model.txt=2"])


def test_keras(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        callback = callback_of("keras")(checkpoint_on="train_end", report_metrics_on=["epoch_end"], metrics=["loss"])
        callback.model = Model()
        callback.on_epoch_end(0, {"loss": 2.0, "other": 1.0})
        callback.on_epoch_end(1, {"loss": 1.0, "other": 1.0})
        callback.on_train_end({"loss": 1.0})

    assert reported(train, tmp_path) == ([{"loss": 2.0}, {"loss": 1.0}, {"loss": 1.0}], ["model.keras=0"])
    with pytest.raises(UsageError, match="Keras has no event 'epoch_over'"):
        callback_of("keras")(checkpoint_on="epoch_over")


def test_lightning(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        callback = callback_of("pytorch_lightning")({"loss": "val_loss"}, filename="trainer.ckpt")
        value = types.SimpleNamespace(item=lambda: 0.25)
        trainer = Model()
        trainer.callback_metrics, trainer.sanity_checking = {"val_loss": value}, True  # type: ignore[attr-defined]
        callback.on_validation_end(trainer, None)
        trainer.sanity_checking = False  # type: ignore[attr-defined]
        callback.on_validation_end(trainer, None)

    assert reported(train, tmp_path) == ([{"loss": 0.25}], ["trainer.ckpt=0"])
    with pytest.raises(UsageError, match="Lightning has no hook 'valid_end'"):
        callback_of("pytorch_lightning")(on="valid_end")


def test_names_of_metrics() -> None:
    found = {"a": 1, "b": 2}
    assert [pick(found, names) for names in (None, "a", ["b"], {"x": "a"})] == [found, {"a": 1}, {"b": 2}, {"x": 1}]
    with pytest.raises(UsageError) as caught:
        pick({"val_loss": 1}, "val_los")
    assert (caught.value.message, caught.value.hint) == (
        "the library has no metric `val_los`",
        "did you mean `val_loss`?",
    )


def test_a_library_that_is_missing_says_so() -> None:
    with pytest.raises(PreconditionError) as caught:
        need_library("no_such_library.callbacks")
    assert caught.value.hint == "pip install no_such_library"
