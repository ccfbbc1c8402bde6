"""Sweeps whose trials are runs on this machine, with real processes and real kills."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter

import pytest

from tests.system.stage import until
from tests.tune.sweep.conftest import SweepStage
from windlass.record.state import State
from windlass.tune.sweep.handle import SweepHandle
from windlass.tune.trial import TrialStatus

pytestmark = pytest.mark.system
ASHA = {"asha": {"max_t": 9, "grace_period": 1, "reduction_factor": 3}}


def test_asha_stops_runs_that_fall_behind(hill: SweepStage) -> None:
    lrs = [0.9, 0.1, 0.5]
    space = {"lr": {"grid": lrs}}
    handle = hill.sweep(hill.file({"space": space, "concurrency": 1, "scheduler": ASHA}, pause_s=0.3, num_steps=4))
    trials = list(handle.history.trials.values())
    assert [trial.config["lr"] for trial in trials] == lrs
    assert handle.row.state == "over"
    assert trials[0].iteration == 4
    assert all(trial.status is TrialStatus.TERMINATED for trial in trials)
    behind = [trial for trial in trials if trial.iteration < 4]
    assert len(behind) == 2, [(trial.id, trial.iteration, trial.why) for trial in trials]
    assert "below the cutoff" in behind[0].why
    assert handle.best().id == "00000"
    runs = {run.id: run for run in hill.runs("climb")}
    assert len(runs) == 3
    assert runs[handle.run_of("00001", 1)].state is State.STOPPED
    assert runs[handle.run_of("00000", 1)].state is State.SUCCEEDED
    assert {str(run.plan.experiment["context"]) for run in runs.values()} == {"{'group': 'hill'}"}
    assert any("trial 00001 of sweep hill" in note for run in runs.values() for note in run.plan.notes)


def test_a_failed_trial_shows_its_traceback_and_the_others_go_on(hill: SweepStage) -> None:
    hill.write(
        "climb.py",
        "import sys\nfrom windlass import report\nreport.metrics({'score': 1}, step=1)\n"
        "if float(sys.argv[1]) > 0.5: raise ValueError('too steep')\n",
    )
    handle = hill.sweep(hill.file({"space": {"lr": {"grid": [0.1, 0.9]}}, "concurrency": 2}))
    one, other = handle.history.trials.values()
    assert (one.status, other.status) == (TrialStatus.TERMINATED, TrialStatus.ERROR)
    assert other.kind == "ValueError"
    assert "ValueError: too steep" in other.error
    assert other.error.startswith("Traceback")


def test_pbt_clones_the_checkpoint_of_a_run(hill: SweepStage) -> None:
    pbt = {"time_attr": "training_iteration", "perturbation_interval": 3, "quantile_fraction": 0.5}
    pbt["hyperparam_mutations"] = {"lr": {"uniform": [0.5, 1]}}
    sweep = {"space": {"lr": {"grid": [0.9, 0.1]}}, "concurrency": 2, "scheduler": {"pbt": pbt}}
    handle = hill.sweep(hill.file(sweep, num_steps=14, pause_s=0.25))
    _, low = handle.history.trials.values()
    assert low.config["lr"] >= 0.4
    clone = next(attempt for attempt in low.attempts if attempt.restore is not None)
    assert clone.restore is not None
    assert clone.restore.trial == "00000"
    run = handle.run_of(low.id, clone.number)
    log = (hill.home.runs / run / "logs/1/main/0.log").read_text()
    assert log.startswith(f"from {clone.restore.iteration}")
    assert [trial.last["training_iteration"] for trial in handle.history.trials.values() if trial.last] == [14, 14]


def leads(handle: SweepHandle, pid: int) -> bool:
    note = handle.folder / "journal" / "head.json"
    return note.exists() and json.loads(note.read_bytes())["pid"] == pid


def wait_until_it_leads(handle: SweepHandle, head: subprocess.Popen[bytes]) -> None:
    until(lambda: leads(handle, head.pid) or head.poll() is not None, "it leads", timeout_s=300)


def story(hill: SweepStage, handle: SweepHandle) -> str:
    """Where the sweep stood when the last head began."""
    trials = handle.history.trials.values()
    return "\n".join(
        [*(f"{trial.id} {trial.status} {trial.iteration} {trial.why}" for trial in trials), hill.words(handle)]
    )


def kill_and_resume(hill: SweepStage, handle: SweepHandle, num_kills: int, die: random.Random) -> None:
    """Let one head after another be killed at any moment, and the last one end the sweep."""
    for _ in range(num_kills):
        head = hill.head(handle)
        wait_until_it_leads(handle, head)
        time.sleep(die.uniform(0.0, 0.9))
        head.send_signal(signal.SIGKILL)
        head.wait()
    head = hill.head(handle)
    until(lambda: head.poll() is not None, f"the last head is done: {story(hill, handle)}", timeout_s=600)
    assert head.returncode == 0, hill.words(handle)


def check_nothing_doubled(hill: SweepStage, handle: SweepHandle, num_trials: int, num_steps: int) -> None:
    history = handle.history
    assert len(history.trials) == num_trials
    assert {str(trial.status) for trial in history.trials.values()} == {"TERMINATED"}, [
        (trial.id, trial.status, trial.error) for trial in history.trials.values()
    ]
    for trial in history.trials.values():
        assert [report.metrics["training_iteration"] for report in trial.reports] == list(range(1, num_steps + 1))
    starts = Counter(run for run, *_ in hill.started())
    assert set(starts.values()) == {1}, "a run was started twice"
    made = {run.id for run in hill.runs("climb") if run.facts.task("main").attempts}
    of_trials = {
        handle.run_of(trial.id, attempt.number) for trial in history.trials.values() for attempt in trial.attempts
    }
    assert made <= of_trials, "a run that no trial has"
    assert len(starts) == num_trials, "a trial ran twice"


def test_a_head_that_is_killed_at_any_moment_doubles_no_run(hill: SweepStage) -> None:
    path = hill.file({"samples": 8, "concurrency": 3}, num_steps=6, pause_s=0.15)
    handle = SweepHandle(hill.prepare(path).create())
    kill_and_resume(hill, handle, 5, random.Random(7))
    check_nothing_doubled(hill, handle, 8, 6)
    assert len(handle.history.heads) == 6


def test_a_detached_sweep_needs_nobody(hill: SweepStage) -> None:
    handle = hill.sweep(hill.file({"samples": 2, "concurrency": 2}, num_steps=2), detach=True)
    until(lambda: handle.row.state == "over", "it is over", timeout_s=300)
    assert handle.row.counts == {"TERMINATED": 2}, hill.words(handle)
    assert handle.wait(0.0).state == "over"
    until(lambda: not handle.has_head, "the head has left")


def test_a_sweep_is_stopped_from_elsewhere(hill: SweepStage) -> None:
    handle = hill.sweep(hill.file({"samples": 2, "concurrency": 2}, num_steps=500, pause_s=0.1), detach=True)
    until(lambda: len(hill.started()) == 2, "both trials run", timeout_s=300)
    handle.stop("0", why="it is enough")
    until(lambda: handle.trial("0").status is TrialStatus.TERMINATED, "trial 0 is over")
    assert handle.trial("0").why == "it is enough"
    handle.stop(why="that too")
    assert handle.wait(300).why == "that too"
    assert {run.state for run in hill.runs("climb")} == {State.STOPPED}


def test_a_sweep_outlives_the_terminal_that_it_was_launched_in(hill: SweepStage) -> None:
    path = hill.file({"samples": 4, "concurrency": 1}, num_steps=3, pause_s=0.3)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "windlass", "sweep", "launch", str(path), "--allow-dirty", "--name", "hill"]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509 - no other thread runs yet
    )
    os.close(theirs)
    shown = bytearray()
    reader = threading.Thread(target=drain, args=(ours, shown, hill))
    reader.start()
    until(lambda: len(hill.started()) >= 1, "the first trial runs", timeout_s=300)
    reader.join()  # it has closed the terminal
    assert process.wait(120) == 0, bytes(shown)
    handle = SweepHandle.find("hill", hill.home)
    until(lambda: handle.row.state == "over", "it is over", timeout_s=300)
    assert handle.row.counts == {"TERMINATED": 4}, hill.words(handle)
    assert len(hill.runs("climb")) == 4
    assert "terminal closed; continues as process" in hill.words(handle)
    until(lambda: not handle.has_head, "the head has left")


def take_terminal() -> None:
    """Make standard input the session's terminal; the tests themselves may ignore SIGHUP, as under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def drain(terminal: int, shown: bytearray, hill: SweepStage) -> None:
    """Read what is shown until a trial runs; then close the terminal, as a person closes a window."""
    while not hill.started():
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)
    os.close(terminal)


@pytest.mark.soak
def test_thirty_kills(hill: SweepStage) -> None:
    die = random.Random(3)
    path = hill.file({"samples": 30, "concurrency": 3}, num_steps=6, pause_s=0.2)
    handle = SweepHandle(hill.prepare(path).create())
    kill_and_resume(hill, handle, 30, die)
    check_nothing_doubled(hill, handle, 30, 6)
