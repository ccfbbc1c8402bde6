"""A folder of code with a small trainer, and sweeps of it; everything that was launched is ended behind the test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.stage import Stage
from windlass import Options
from windlass.runs.home import Home
from windlass.tune.sweep.handle import SweepHandle
from windlass.tune.sweep.launching import launch_sweep
from windlass.tune.sweep.preparing import PreparedSweep, prepare_sweep

TRAINER = """
import os, sys, time
from windlass import report

lr, num_steps, pause_s = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with open(os.environ["STARTS"], "a") as file:
    file.write(f"{report.place().run} {report.place().attempt} {os.getpid()}\\n")
begin = 0
saved = report.latest_checkpoint()
if saved is not None:
    begin = int((saved / "step").read_text())
    print("from", begin, flush=True)
for step in range(begin + 1, num_steps + 1):
    time.sleep(pause_s)
    report.metrics({"score": lr * step}, step=step)
    with report.checkpoint_dir(step=step) as folder:
        (folder / "step").write_text(str(step))
    if report.should_stop():
        sys.exit(75)
"""
TRAINABLE = """
import os, time
from windlass import tune

class Climber(tune.Trainable):
    def setup(self, config):
        self.lr, self.height = config["lr"], 0.0
        with open(os.environ["STARTS"], "a") as file:
            file.write(f"{config['lr']} {os.getpid()}\\n")

    def step(self):
        time.sleep(float(os.environ.get("PAUSE_S", "0.02")))
        self.height += self.lr
        return {"score": self.height, "done": self.iteration >= 7}

    def save_checkpoint(self, folder):
        return {"height": self.height}

    def load_checkpoint(self, saved):
        self.height = saved["height"]
"""
HEAD = [sys.executable, "-m", "windlass.tune.sweep"]


class SweepStage(Stage):
    """Launches sweeps, and heads that can be killed."""

    def __init__(self, folder: Path, home: Home, *more: Any) -> None:
        super().__init__(folder, home, *more)
        self.write("climb.py", TRAINER)
        self.write("climbing.py", TRAINABLE)
        self.heads: list[subprocess.Popen[bytes]] = []

    def file(self, sweep: dict[str, Any], *, num_steps: int = 9, pause_s: float = 0.05, **spec: Any) -> Path:
        """An experiment whose trials climb `lr` a step."""
        spec.setdefault("params", {"lr": 0.1, "num_steps": num_steps, "pause_s": pause_s})
        command = f"{sys.executable} -u climb.py ${{params.lr}} ${{params.num_steps}} ${{params.pause_s}}"
        task = {"run": command, "grace": "1s", "cpus": 1}
        spec.setdefault("tasks", {"main": task})
        sweep = {"metric": "score", "mode": "max", "space": {"lr": {"uniform": [0, 1]}}, **sweep}
        return self.experiment({**spec, "sweep": sweep}, spec.pop("name", "climb"))

    def prepare(self, path: Path, name: str = "hill", on: str = "") -> PreparedSweep:
        """Read and plan it."""
        return prepare_sweep(path, (), Options(allow_dirty=True, on=on), name=name, home=self.home)

    def sweep(self, path: Path, name: str = "hill", on: str = "", **how: Any) -> SweepHandle:
        """Launch it, with a head in this process unless it is detached."""
        return launch_sweep(self.prepare(path, name, on), **how)

    def head(self, handle: SweepHandle) -> subprocess.Popen[bytes]:
        """A head in a process that a test may kill."""
        with (handle.folder / "head.log").open("ab") as words:
            found = subprocess.Popen([*HEAD, str(handle.folder)], stdout=words, stderr=words, start_new_session=True)
        self.heads.append(found)
        return found

    def words(self, handle: SweepHandle) -> str:
        """What heads printed."""
        return (handle.folder / "head.log").read_text()

    def started(self) -> list[list[str]]:
        """The lines that user code wrote at its starts."""
        return [line.split() for line in self.starts.read_text().splitlines()] if self.starts.exists() else []

    def close(self) -> None:
        """End heads, then runs."""
        for head in self.heads:
            if head.poll() is None:  # the number of one that was waited for may be another process's by now
                os.killpg(head.pid, signal.SIGKILL)
                head.wait()
        for note in self.home.path.glob("sweeps/*/journal/head.json"):
            data = json.loads(note.read_bytes())
            command = Path(f"/proc/{data['pid']}/cmdline")
            with contextlib.suppress(OSError):
                if b"windlass.tune.sweep" in command.read_bytes():
                    os.kill(data["pid"], signal.SIGKILL)
        super().close()


@pytest.fixture
def hill(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepStage]:
    for name in list(os.environ):
        if name.startswith(("GIT_", "UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("WINDLASS_GPUS", "")
    found = SweepStage(tmp_path, Home(home))
    yield found
    found.close()


__all__ = ["HEAD", "SweepStage", "hill"]
