"""Ctrl-C in a script: trials save, fit returns what there is, and the restored sweep does the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windlass import tune
from windlass.tune.folder import SweepFolder

pytestmark = pytest.mark.system

SCRIPT = """
import sys, time
from windlass import tune

class Slow(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        time.sleep(0.02)
        return {"count": self.count, "done": self.count >= 30}

    def save_checkpoint(self, folder):
        return {"count": self.count}

    def load_checkpoint(self, state):
        self.count = state["count"]

if __name__ == "__main__":
    path, again = sys.argv[1:]
    run = tune.RunConfig(name="slow", storage_path=path, verbose=0)
    if again == "again":
        tuner = tune.Tuner.restore(path + "/slow", Slow, run_config=run)
    else:
        tuner = tune.Tuner(Slow, tune_config=tune.TuneConfig(num_samples=4, max_concurrent_trials=2), run_config=run)
    results = tuner.fit()
    print(len(results), results.num_terminated)
"""


def test_ctrl_c_returns_what_there_is_and_restore_does_the_rest(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "WINDLASS_HOME": str(tmp_path / "home")}
    command = [sys.executable, str(script), str(tmp_path)]
    process = subprocess.Popen([*command, "first"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = SweepFolder(tmp_path / "slow").head_journal
    deadline = time.monotonic() + 300
    while not (journal.exists() and journal.read_bytes().count(b"trial-reported") >= 5):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, told = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert int(said.split()[1]) < 4
    assert f"resume with Tuner.restore('{tmp_path / 'slow'}', ...)" in told
    done = subprocess.run([*command, "again"], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["4", "4"], done.stderr
    trials = tune.ResultGrid(tmp_path / "slow").analysis.history.trials.values()
    assert [trial.last["count"] for trial in trials if trial.last] == [30] * 4
    assert max(len(trial.attempts) for trial in trials) == 2
