"""The class API driven by hand, and what it says of itself before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.trainable import Trainable
from windlass.tune.trainable.capabilities import can_save, check_trainable, is_class
from windlass.tune.trainable.checkpoint import Checkpoint


class Adder(Trainable):
    def setup(self, config: dict[str, Any]) -> None:
        self.sum = config.get("start", 0)
        config["changed"] = True

    def step(self) -> dict[str, Any]:
        self.sum += 1
        return {"sum": self.sum, "timesteps_this_iter": 10}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"sum": self.sum, "pair": (1, 2)} if self.config.get("tuple") else {"sum": self.sum}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.loaded = checkpoint
        self.sum = checkpoint["sum"]


class Files(Adder):
    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        path = Path(checkpoint_dir, "deep", "model")
        path.parent.mkdir()
        path.write_text(str(self.sum))
        return {"none": None, "folder": checkpoint_dir, "file": str(path), "bad": "/elsewhere"}[self.config["returns"]]

    def load_checkpoint(self, checkpoint: Any) -> None:
        path = Path(checkpoint)
        self.sum = int((path if path.is_file() else path / "deep" / "model").read_text())


class First(Trainable):
    """The first published form."""

    def _setup(self, config: dict[str, Any]) -> None:
        self.log: list[str] = ["setup"]
        self.t = 0

    def _train(self) -> dict[str, Any]:
        self.t += 1
        return {"t": self.t, "iteration_before": self._iteration}

    def _save(self, checkpoint_dir: str) -> str:
        path = os.path.join(checkpoint_dir, "t.txt")
        Path(path).write_text(str(self.t))
        return path

    def _restore(self, checkpoint: str) -> None:
        self.t = int(Path(checkpoint).read_text())

    def _stop(self) -> None:
        self.log.append("stop")

    def _log_result(self, result: dict[str, Any]) -> None:
        self.log.append(f"log {result['t']}")


class Silent(Trainable):
    def step(self) -> dict[str, Any]:
        return {}


def test_train_counts_and_fills_in() -> None:
    adder = Adder({"start": 5})
    assert "changed" not in adder.config
    first, second = adder.train(), adder.train()
    assert (first["sum"], second["sum"]) == (6, 7)
    assert (first["training_iteration"], second["training_iteration"]) == (1, 2)
    assert second["timesteps_total"] == 20
    assert second["time_total_s"] >= second["time_this_iter_s"] >= 0
    assert second["done"] is False
    assert second["config"] == {"start": 5}
    assert second["pid"] == os.getpid()
    assert (adder.iteration, adder.training_iteration, adder.trial_id) == (2, 2, "default")


def test_a_dict_is_saved_and_comes_back_as_it_was(tmp_path: Path) -> None:
    for name, config in (("json", {}), ("pickle", {"tuple": True})):
        adder = Adder(config)
        adder.train()
        saved = adder.save(str(tmp_path / name))
        other = Adder({})
        other.restore(saved)
        assert (other.sum, other.iteration, other._timesteps_total) == (1, 1, 10)
        assert other.loaded == adder.save_checkpoint("")
        assert sorted(os.listdir(tmp_path / name)) == [".windlass.json", f"state.{name}"]


@pytest.mark.parametrize("returns", ["none", "folder", "file"])
def test_files_are_saved_and_come_back_from_another_place(tmp_path: Path, returns: str) -> None:
    files = Files({"returns": returns})
    files.train()
    files.save(str(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    other = Files({"returns": returns})
    other.restore(str(tmp_path / "b"))
    assert other.sum == 1


def test_a_path_outside_of_the_folder_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Files.save_checkpoint returned '/elsewhere'"):
        Files({"returns": "bad"}).save()


def test_the_first_published_form_works(tmp_path: Path) -> None:
    trial = First()
    assert trial.train()["t"] == 1
    assert trial.train()["iteration_before"] == 1
    saved = trial.save(str(tmp_path / "c"))
    trial.stop()
    assert trial.log == ["setup", "log 1", "log 2", "stop"]
    other = First()
    other.restore(Checkpoint(saved.path))
    assert (other.t, other.iteration) == (2, 2)


def test_reset_begins_anew_only_where_the_class_can() -> None:
    class Fresh(Adder):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.sum = new_config["start"]
            return True

    can, cannot = Fresh({}), Adder({})
    can.train()
    cannot.train()
    assert can.reset({"start": 40})
    assert not cannot.reset({"start": 40})
    assert (can.iteration, can.train()["sum"], can.config) == (1 - 1, 41, {"start": 40})
    assert (cannot.iteration, cannot.config) == (1, {})


def test_capabilities_are_known_before_anything_starts() -> None:
    assert [can_save(cls) for cls in (Adder, First, Silent)] == [True, True, False]
    assert can_save(lambda config: None)
    assert is_class(Adder)
    assert not is_class(print)
    with pytest.raises(PreconditionError, match="Silent cannot save"):
        Silent().save()


@pytest.mark.parametrize(
    ("trainable", "code"),
    [
        (7, "invalid-trainable"),
        (dict, "invalid-trainable"),
        (lambda: None, "invalid-trainable"),
        (type("Empty", (Trainable,), {}), "invalid-trainable"),
    ],
)
def test_what_is_no_trainable_is_refused(trainable: Any, code: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_trainable(trainable)
    assert refused.value.code == code


def test_a_step_that_returns_no_dict_is_refused() -> None:
    class Wrong(Trainable):
        def step(self) -> Any:
            return 1.0

    with pytest.raises(UsageError, match=r"Wrong.step returned 1.0"):
        Wrong().train()


def test_own_times_are_believed() -> None:
    class Timed(Trainable):
        def step(self) -> dict[str, Any]:
            return {"time_this_iter_s": 100.0}

    trial = Timed()
    trial.train()
    assert trial.train()["time_total_s"] == 200.0
