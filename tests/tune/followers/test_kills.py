"""Real followers in processes of their own, killed again and again while the journal grows."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tune.results.journals import random_journal
from windlass.tune.followers.following import SweepFollower
from windlass.tune.followers.loggers import CSVLoggerCallback, JsonLoggerCallback
from windlass.tune.followers.processes import FollowerProcesses
from windlass.tune.followers.target import make_target


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}"
        time.sleep(0.01)


def start(folder: Path, target: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "windlass.tune.followers", str(folder), "--to", target]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


@pytest.mark.system
def test_killed_followers_leave_every_report_once(tmp_path: Path) -> None:
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "sweep"
    random_journal(num_trials=40, num_reports=30).append(undisturbed)
    SweepFollower(undisturbed, make_target("csv", {})).run(follows=False)
    journal = random_journal(num_trials=40, num_reports=30)
    share = len(journal.records) // 4
    for _ in range(3):
        journal.append(folder, num_records=share)
        note = folder / "followers" / "csv.json"
        before = note.read_bytes() if note.exists() else b""
        process = start(folder, "csv")
        wait_for(lambda: note.exists() and note.read_bytes() != before, "the follower's first note")  # noqa: B023
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    journal.append(folder)
    process = start(folder, "csv")
    _, said = process.communicate(timeout=300)
    assert (process.returncode, said) == (0, b"")
    files = sorted(path.relative_to(folder) for path in folder.glob("trials/*/progress.csv"))
    assert len(files) == 39
    for path in files:
        assert (folder / path).read_bytes() == (undisturbed / path).read_bytes()


@pytest.mark.system
def test_the_head_s_followers_end_with_the_sweep_and_say_what_failed(tmp_path: Path) -> None:
    journal = random_journal()
    journal.append(tmp_path, num_records=20)
    broken = CSVLoggerCallback({"colour": "red"})
    followers = FollowerProcesses(tmp_path, [JsonLoggerCallback(), broken])
    followers.start()
    journal.append(tmp_path)
    (sentence,) = followers.close(wait_s=300)
    assert sentence.startswith("the follower 'csv' failed: error: the follower 'csv' does not take these options")
    assert (tmp_path / "trials/00007/result.json").exists()


@pytest.mark.system
def test_an_interrupted_head_s_followers_write_what_is_there(tmp_path: Path) -> None:
    journal = random_journal()
    journal.append(tmp_path, num_records=20)
    followers = FollowerProcesses(tmp_path, [JsonLoggerCallback()])
    followers.start()
    wait_for((tmp_path / "followers/json.json").exists, "the follower")
    assert followers.close(is_over=False, wait_s=300) == []
    assert (tmp_path / "trials/00000/result.json").exists()


def train(config: dict[str, Any]) -> None:
    """What the sweep below runs."""
    from windlass import tune

    for step in range(20):
        tune.report({"loss": config["x"] / (step + 1)})


class Assassin:
    """A callback in the head that kills the sweep's follower in the middle of the sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.killed: list[int] = []
        self.num_results = 0

    def on_trial_result(self, **info: Any) -> None:
        self.num_results += 1
        if self.num_results != 40:
            return
        wait_for((self.folder / "followers/csv.json").exists, "the follower")
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"windlass.tune.followers" in words and str(self.folder).encode() in words:
                    os.kill(int(path.name), signal.SIGKILL)
                    self.killed.append(int(path.name))


@pytest.mark.system
def test_a_sweep_does_not_notice_that_its_follower_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from windlass import tune

    folder = tmp_path / "killed"
    assassin = Assassin(folder)
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([float(x) for x in range(1, 31)])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name="killed", storage_path=str(tmp_path), verbose=0, callbacks=[CSVLoggerCallback(), assassin]
        ),
    ).fit()
    assert len(assassin.killed) == 1
    assert (results.num_terminated, results.num_errors, assassin.num_results) == (30, 0, 600)
    assert results.get_best_result().config == {"x": 1.0}
    assert "the follower 'csv' failed" in capfd.readouterr().err
    process = start(folder, "csv")
    process.communicate(timeout=300)
    for result in results:
        with open(Path(result.path, "progress.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["training_iteration"]) for row in rows] == list(range(1, 21))
        assert [float(row["loss"]) for row in rows] == list(result.metrics_dataframe["loss"])
