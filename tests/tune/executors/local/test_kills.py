"""SIGKILL of workers and heads at random moments: no report that counted is lost, and trials end as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.tune.executors.local.sweep_program import controller
from windlass.core.process import find_by_environment
from windlass.tune.controller.controller import Controller
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.trial import TrialStatus


def check(history: History, *, num_trials: int, num_steps: int) -> None:
    """Every trial ended, told each step once, and its state was never behind or ahead of its reports."""
    assert len(history.trials) == num_trials
    for trial in history.trials.values():
        assert trial.status is TrialStatus.TERMINATED, (trial.id, trial.why, trial.error)
        assert [report.iteration for report in trial.reports] == list(range(1, num_steps + 1))
        by = trial.config["by"]
        assert [report.metrics["value"] for report in trial.reports] == [by * k for k in range(1, num_steps + 1)]


class Killer:
    """Kills a running worker now and then; how many it may is given."""

    def __init__(self, num_kills: int) -> None:
        self.num_left = num_kills
        self._random = Random(7)
        self._wait = 3

    def __call__(self, controller: Controller) -> None:
        self._wait -= 1
        slots = [slot for slot in controller.executor._slots if slot.pid and slot.running]  # type: ignore[attr-defined]
        if self._wait > 0 or not self.num_left or not slots:
            return
        self._wait = self._random.randint(1, 8)
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(self._random.choice(slots).pid, signal.SIGKILL)
            self.num_left -= 1


def kill_workers(folder: Path, num_kills: int, num_trials: int) -> None:
    killer = Killer(num_kills)
    sweep = controller(folder, num_trials=num_trials, num_steps=25, options={}, on_turn=killer)
    assert sweep.run().is_over
    assert killer.num_left == 0, "the sweep was over before all kills were done"
    history = read_history(folder)
    check(history, num_trials=num_trials, num_steps=25)
    assert sum(trial.num_interruptions for trial in history.trials.values()) >= num_kills // 2


def kill_heads(folder: Path, num_kills: int, options: dict[str, object]) -> None:
    random, token = Random(11), f"{os.getpid()}-{time.monotonic_ns()}"
    argv = [sys.executable, "-m", "tests.tune.executors.local.sweep_program", str(folder), "16", "60"]
    ended_before: set[str] = set()
    for number in range(num_kills + 1):
        head = subprocess.Popen([*argv, json.dumps(options)], env={**os.environ, "WINDLASS_TEST_HEAD": token})
        if number == num_kills:
            assert head.wait(600) == 0
            break
        wait_for_reports(folder, head)
        time.sleep(random.uniform(0.0, 0.3))
        assert head.poll() is None, "the sweep was over before this kill"
        head.kill()
        head.wait()
        if not options:
            wait_until_alone(token)
        history = read_history(folder)
        ended = {trial.id for trial in history.trials.values() if trial.status is TrialStatus.TERMINATED}
        assert ended_before <= ended
        ended_before = ended
    history = read_history(folder)
    check(history, num_trials=16, num_steps=60)
    wait_until_alone(token)


def wait_for_reports(folder: Path, head: subprocess.Popen[bytes]) -> None:
    """Until this head has told of a report."""
    before = size(folder)
    deadline = time.monotonic() + 300
    while size(folder) < before + 4000 and head.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def size(folder: Path) -> int:
    journal = folder / "journal" / "head.wj"
    return journal.stat().st_size if journal.exists() else 0


def wait_until_alone(token: str) -> None:
    deadline = time.monotonic() + 300
    while found := find_by_environment("WINDLASS_TEST_HEAD", token):
        assert time.monotonic() < deadline, f"left behind: {found}"
        time.sleep(0.02)


@pytest.mark.system
def test_twenty_killed_workers(tmp_path: Path) -> None:
    kill_workers(tmp_path, 20, num_trials=10)


@pytest.mark.system
def test_killed_heads_leave_nothing_and_are_restored_exactly(tmp_path: Path) -> None:
    kill_heads(tmp_path, 4, {})


@pytest.mark.system
def test_killed_heads_of_a_detached_sweep_are_no_event(tmp_path: Path) -> None:
    kill_heads(tmp_path, 3, {"detach": True})
    attempts = [len(trial.attempts) for trial in read_history(tmp_path).trials.values()]
    assert sum(attempts) <= len(attempts) + 2  # trials go on in their workers; only a start may be caught half-way


@pytest.mark.soak
def test_two_hundred_killed_workers(tmp_path: Path) -> None:
    kill_workers(tmp_path, 200, num_trials=100)


@pytest.mark.soak
def test_thirty_killed_heads(tmp_path: Path) -> None:
    for number in range(6):
        kill_heads(tmp_path / str(number), 5, {"detach": True} if number % 2 else {})
