"""The suite of all executors, on slots that are local runs; a few of its tests in every CI run, all of them in the soak."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from windlass import Options
from windlass.launcher.prepare import prepare_file
from windlass.runs.home import Home
from windlass.testing.executor_conformance import ExecutorConformance
from windlass.tune.executors.protocol import Executor
from windlass.tune.executors.runs.trial_template import TrialTemplate
from windlass.tune.executors.slots import SlotsExecutor

_OFTEN = {
    "test_no_report_comes_beyond_the_credit",
    "test_a_lost_worker_is_told_once_and_its_trial_goes_on_elsewhere",
    "test_a_trial_that_ends_its_process_has_failed",
    "test_a_class_saves_when_told_and_another_attempt_goes_on_from_there",
    "test_nothing_is_left_after_close",
}


def make_slots(folder: Path, num_cpus: float = 1) -> SlotsExecutor:
    """An executor whose slots are runs on this machine."""
    code = folder.parent / "code"
    code.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "windlass.tune.executors.slots.worker"]
    spec = {"name": "slot", "tasks": {"main": {"run": command, "cpus": num_cpus}}}
    (code / "slot.yaml").write_text(json.dumps(spec))
    prepared = prepare_file(code / "slot.yaml", (), Options(allow_dirty=True))
    TrialTemplate.of(prepared, "sweep").write(folder)
    return SlotsExecutor(home=Home.default())


@pytest.mark.usefixtures("home")
class SlotsConformance(ExecutorConformance):
    """How slots are made."""

    counts_resources: ClassVar[bool] = False  # a slot has one shape, and counts nothing beyond it

    def make_executor(self, folder: Path) -> Executor:
        return make_slots(folder)


@pytest.mark.soak
class TestSlots(SlotsConformance):
    """All of it."""


@pytest.mark.system
class TestSlotsOften(SlotsConformance):
    """What is most likely to break."""

    num_slots: ClassVar[int] = 1


for _name in [name for name in dir(ExecutorConformance) if name.startswith("test_") and name not in _OFTEN]:
    setattr(TestSlotsOften, _name, None)
