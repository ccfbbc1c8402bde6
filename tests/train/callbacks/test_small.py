"""Garbage, memory, report, the user's own, and what every run has."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.callbacks.conftest import Make
from tests.train.tiny import Diary
from windlass import report
from windlass.core.errors import SpecError
from windlass.train.callbacks.build import build_callbacks, mandatory_callbacks
from windlass.train.callbacks.config import (
    ConsoleConfig,
    GarbageConfig,
    JsonLinesConfig,
    LMEvalConfig,
    PythonConfig,
    SpeedConfig,
)
from windlass.train.callbacks.console import Console
from windlass.train.callbacks.garbage import Garbage
from windlass.train.callbacks.memory import Memory, resident_bytes
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.callbacks.report import Report
from windlass.train.callbacks.trackers.json_lines import JsonLines
from windlass.train.data.config import SourceConfig


def test_garbage_is_collected_at_its_step_and_never_between(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []

    class Witness(TrainerCallback):
        def on_step_end(self) -> None:
            assert not gc.isenabled()

    trainer = make({"garbage": Garbage(every=2), "witness": Witness()})
    monkeypatch.setattr(gc, "collect", lambda *generation: collected.append(trainer.step))
    assert gc.isenabled()
    trainer.fit()
    assert collected == [0, 2, 4]
    assert gc.isenabled()


def test_garbage_leaves_collection_off_where_it_was_off(make: Make) -> None:
    gc.disable()
    try:
        make({"garbage": Garbage()}).fit()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_memory_is_recorded(make: Make) -> None:
    diary = Diary()
    make({"memory": Memory(), "diary": diary}, steps=2).fit()
    assert 0.01 < diary.metrics[2]["memory/resident_gib"] < 1000
    ballast = bytearray(64 * 2**20)
    before = resident_bytes()
    ballast[:] = b"1" * len(ballast)
    assert resident_bytes() - before < 2**31


def test_report_says_metrics_of_each_step_and_progress_at_a_pace(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[Any, ...]] = []
    monkeypatch.setattr(report, "metrics", lambda values, *, step: said.append(("metrics", step, sorted(values))))
    monkeypatch.setattr(report, "progress", lambda phase="step", *, step=None: said.append((phase, step)))
    times = iter([0.0, 0.4, 1.0, 1.5, 2.1])
    make({"report": Report(now=lambda: next(times))}).fit()
    assert said[0] == ("init", None)
    assert [entry[1] for entry in said if entry[0] == "step"] == [1, 3, 5]
    metrics = [entry for entry in said if entry[0] == "metrics"]
    assert [entry[1] for entry in metrics] == [1, 2, 3, 4, 5]
    assert "train/loss" in metrics[0][2]


def test_outside_windlass_report_is_silent(make: Make) -> None:
    make({"report": Report()}).fit()


def test_mandatory_ones_are_added() -> None:
    assert sorted(mandatory_callbacks()) == ["console", "garbage", "speed"]
    assert {name: type(each) for name, each in build_callbacks({}).items()} == {
        name: type(each) for name, each in mandatory_callbacks().items()
    }


def test_in_windlass_report_is_mandatory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "is_active", lambda: True)
    assert isinstance(mandatory_callbacks()["report"], Report)


def test_naming_one_changes_it_and_disabling_leaves_it_out() -> None:
    found = build_callbacks({"lines": ConsoleConfig(every=3), "speed": SpeedConfig(enabled=False)})
    assert found["console"] is None
    assert found["speed"] is None
    assert isinstance(found["lines"], Console)
    assert found["lines"].every == 3
    assert isinstance(found["garbage"], Garbage)


def test_two_of_a_kind() -> None:
    found = build_callbacks({"a": JsonLinesConfig(path="a"), "b": JsonLinesConfig(path="b")})
    assert [each.path for each in found.values() if isinstance(each, JsonLines)] == ["a", "b"]


def test_evaluations_come_from_their_makers() -> None:
    config = LMEvalConfig(sources={"dev": SourceConfig(path=("x",))})
    mark = TrainerCallback()
    assert (
        build_callbacks({"dev": config}, {"lm-eval": lambda given: mark if given is config else TrainerCallback()})[
            "dev"
        ]
        is mark
    )
    with pytest.raises(SpecError, match="no builder for callbacks of kind 'lm-eval'"):
        build_callbacks({"dev": config})


def test_every_kind_takes_its_settings() -> None:
    from windlass.train.callbacks.config import (
        BatchSizeConfig,
        CometConfig,
        GradientsConfig,
        MemoryConfig,
        ProfilerConfig,
        ReportConfig,
        SequenceLengthConfig,
        TensorBoardConfig,
        WandbConfig,
    )

    configs: list[Any] = [
        BatchSizeConfig(at=(), tokens=()),
        CometConfig(),
        GarbageConfig(every=7),
        GradientsConfig(),
        MemoryConfig(),
        ProfilerConfig(),
        ReportConfig(),
        SequenceLengthConfig(at=(), lengths=()),
        TensorBoardConfig(),
        WandbConfig(),
    ]
    for config in configs:
        assert isinstance(build_callbacks({"it": config})["it"], TrainerCallback)


OWN = """
from windlass.train import TrainerCallback

class Stop(TrainerCallback):
    def __init__(self, *, after: int) -> None:
        self.after = after

    def on_step_end(self) -> None:
        if self.trainer.step >= self.after:
            self.trainer.request_stop()

NUMBER = 3

def nothing() -> int:
    return 1
"""


def test_a_callback_of_the_users_own(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    built = build_callbacks({"stop": PythonConfig(target=f"{path}:Stop", args={"after": 2})})["stop"]
    trainer = make({"stop": built})
    assert trainer.fit().end == "stopped"
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Stop", {}, "missing key `after` in callbacks.it.args, of FILE:Stop"),
        ("Stop", {"atfer": 2}, "unknown key `atfer` in callbacks.it.args, of FILE:Stop"),
        ("Stpo", {}, "callbacks.it.target: `FILE` has no `Stpo`"),
        ("NUMBER", {}, "callbacks.it.target: `FILE:NUMBER` is a int, which cannot be called"),
        ("nothing", {}, "callbacks.it: FILE:nothing returned a int, not a TrainerCallback"),
    ],
)
def test_a_callback_that_cannot_be(tmp_path: Path, name: str, args: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    with pytest.raises(SpecError) as caught:
        build_callbacks({"it": PythonConfig(target=f"{path}:{name}", args=args)})
    assert caught.value.message.replace(str(path), "FILE").startswith(message)
    assert caught.value.hint


def test_json_lines(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"

    class Odd(TrainerCallback):
        def on_step_end(self) -> None:
            self.trainer.record("odd", float("inf"), "none")

    make({"jsonl": JsonLines(path=str(path)), "odd": Odd()}, steps=3).fit()
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    assert entries[0]["odd"] == "inf"
    assert isinstance(entries[0]["train/loss"], float)
