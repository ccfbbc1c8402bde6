"""The view of a head that takes up a sweep shows what was before it: where trials ran, and how long heads have lived."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import here, quiet
from windlass import tune
from windlass.tune.controller.journal.history import read_history


def lasting(config: dict[str, Any]) -> None:
    """A trial that takes a while."""
    time.sleep(0.05)
    tune.report({"loss": config["x"]})


def test_a_sweep_that_goes_on_shows_its_places_and_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune.Tuner(
        lasting, param_space={"x": tune.grid_search([1, 2])}, tune_config=here(), run_config=quiet(tmp_path)
    ).fit()  # fmt: skip
    before = read_history(tmp_path / "sweep")
    capsys.readouterr()
    tune.Tuner.extend(
        tmp_path / "sweep", lasting, num_samples=2, tune_config=here(), run_config=tune.RunConfig(verbose=1)
    ).fit()
    shown = capsys.readouterr().err.splitlines()
    count = next(line for line in shown if "4 done" in line)
    seconds = re.search(r"; ([0-9.]+)s$", count)
    assert seconds
    assert float(seconds[1]) >= round(before.last_at - before.created_at, 2) > 0
    rows = [line for line in shown if re.match(r"0000\d  done", line)]
    places = {attempt.host or attempt.slot for trial in before.trials.values() for attempt in trial.attempts}
    assert len(rows) == 4
    assert places
    assert all(any(place in row for place in places) for row in rows)
