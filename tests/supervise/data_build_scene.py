"""Processes of `windlass.pyz data-build` on one place, and a blow at some of them at a random moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from windlass.core.process import descendants
from windlass.supervise.builds.built_data import CONTENT, full_differences, generation_folder
from windlass.supervise.builds.once import find_ready

__all__ = ["DataMill", "strike"]

_MAIN = "import sys; from windlass.supervise.main import main; sys.exit(main(sys.argv[1:]))"
_SOURCES = Path(__file__).parents[2] / "src"
NUM_FILES = 20
SLOW = f"echo x >> $COUNT; i=0; while [ $i -lt {NUM_FILES} ]; do echo $i > $WINDLASS_OUT/$i.txt; sleep 0.01; i=$((i+1)); done"


class DataMill:
    """Starts builds of the key `kkkk` below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / "built" / ("k" * 40)
        self.count = folder / "count"
        self.record = folder / "out" / "built.json"
        self.processes: list[subprocess.Popen[str]] = []

    @property
    def num_builds(self) -> int:
        return len(self.count.read_text().split()) if self.count.exists() else 0

    @property
    def content(self) -> Path:
        return self.place / CONTENT

    def start(self, line: str, **variables: str) -> subprocess.Popen[str]:
        """One process; `$WINDLASS_OUT` in the line is where its generation lies."""
        options = {"place": self.place, "name": "x", "record": self.record, "label": "play.x"}
        words = ["data-build", *(f"--{key}={value}" for key, value in options.items()), "--", "/bin/sh", "-c", line]
        environ = {
            **os.environ,
            "PYTHONPATH": str(_SOURCES),
            "COUNT": str(self.count),
            "WINDLASS_OUT": str(generation_folder(self.place)),
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *words],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, line: str, **variables: str) -> tuple[int, str]:
        """One process to its end: exit code and what it said."""
        process = self.start(line, **variables)
        said = process.communicate(timeout=300)[1]
        return process.returncode, said

    def problems(self) -> list[str]:
        """What is wrong with what looks finished, or is left beside it."""
        found = []
        if find_ready(self.place) is not None:
            found += [f"{path} {problem}" for path, problem in full_differences(self.place)]
            if len(list(self.content.iterdir())) != NUM_FILES:
                found.append("it is half")
        return found

    def left_overs(self) -> list[str]:
        kept = {self.place.name, f"{self.place.name}.lock", ".last"}
        return sorted({entry.name for entry in self.place.parent.iterdir()} - kept)

    def close(self) -> None:
        """End everything that was started here."""
        for process in self.processes:
            for pid in [*descendants(process.pid), process.pid]:
                _kill(pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a session of its own: what it left as well
            process.communicate(timeout=300)


def strike(folder: Path, seed: int) -> list[str]:
    """Three builds of one key at once, of which one is killed, or its command is; returns what went wrong."""
    chance, mill = random.Random(seed), DataMill(folder)
    try:
        started = [mill.start(SLOW) for _ in range(3)]
        time.sleep(chance.uniform(0.0, 0.9))
        victim = chance.choice(started)
        targets = [victim.pid] if chance.random() < 0.5 else descendants(victim.pid) or [victim.pid]
        for pid in targets:
            _kill(pid)
        problems = mill.problems()
        for process in started:
            process.communicate(timeout=300)
            problems += mill.problems()
        code, said = mill.run(SLOW)
        problems += [] if code == 0 else [f"afterwards: {said}"]
        return problems + mill.problems() + mill.left_overs()
    finally:
        mill.close()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
