"""A scheduler that hangs holds up neither the code's output nor a stop: real supervisors, programs that stand in."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.stage import living
from windlass.core.clock import SystemClock
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import RunFacts, fold
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, ReplicaCommand, TaskSettings

pytestmark = pytest.mark.system

FLOOD = "import time; time.sleep({pause_s}); print(('y' * 99 + '\\n') * 5000, end='', flush=True); time.sleep(600)"
SQUEUE = """#!/bin/sh
echo squeue >>{folder}/calls
[ $(grep -c squeue {folder}/calls) -lt {hangs_at} ] && exit
echo $$ >>{folder}/hanging
exec sleep 60
"""
SBATCH = "#!/bin/sh\necho sbatch >>{folder}/calls\necho 78\n"
QUICK_S = 10.0
"""Far below the twenty seconds that a call may take, and far above what a busy machine needs."""


class Scene:
    """One replica of a link of a chain, whose scheduler's programs hang at some call."""

    def __init__(self, folder: Path, *, hangs_at: int, pause_s: float) -> None:
        self.folder, self.programs, self.scene = folder, folder / "bin", str(folder)
        self.job_folder = folder / "jobs" / "main-1"
        for path in (self.programs, self.job_folder, folder / "journal"):
            path.mkdir(parents=True)
        for name, text in (("squeue", SQUEUE), ("sbatch", SBATCH), ("scancel", "#!/bin/sh\n")):
            (self.programs / name).write_text(text.format(folder=self.programs, hangs_at=hangs_at))
            (self.programs / name).chmod(0o755)
        self._client = JournalWriter(folder / "journal", "client", SystemClock())
        intent: dict[str, Any] = {"job": 1, "token": "t", "backend": "slurm", "resets_budgets": False}
        self._client.append(events.JOB_INTENDED, task="main", **intent)
        command = (sys.executable, "-c", FLOOD.format(pause_s=pause_s))
        job = JobDocument(
            *("r-00000000", "main", 1, "t", ReplicaCommand(command, cwd=str(folder))),
            JobPaths(str(folder), str(folder / "out"), str(folder / "checkpoints")),
            settings=TaskSettings(grace_s=1.0),
            chain=ChainConfig(
                scheduler="slurm", mode="successor", num_links=5, bin=str(self.programs), submit=("sbatch", "${link}")
            ),
        )
        (self.job_folder / "job.json").write_text(json.dumps(job.to_data()))

    def start(self) -> subprocess.Popen[bytes]:
        archive = ensure_archive(self.folder / "cache")
        words = [sys.executable, "-I", "-S", str(archive), "link", str(self.job_folder), "1"]
        return subprocess.Popen(
            words, env={**os.environ, "SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SCENE": self.scene}
        )

    def stop(self) -> None:
        self._client.append(
            events.STOP_REQUESTED, tasks={"main": 1}, reason="somebody asked", is_checkpoint_wanted=False
        )

    def facts(self) -> RunFacts:
        return fold(read_journal(self.folder / "journal"))

    def num_calls(self, program: str) -> int:
        path = self.programs / "calls"
        return path.read_text().split().count(program) if path.exists() else 0

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.folder / "logs").rglob("*.log"))


def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    processes = []

    def made(**how: float) -> Scene:
        scene = Scene(tmp_path / "run", **how)  # type: ignore[arg-type]
        processes.append(scene.start())
        return scene

    yield made
    for process in processes:
        process.kill()
        process.wait()
    while left := living(f"SCENE={tmp_path}"):
        kill(left)
    hanging = tmp_path / "run" / "bin" / "hanging"  # its environment is the scheduler's
    kill(map(int, hanging.read_text().split()))


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_output_is_taken_and_a_stop_is_obeyed_while_the_queue_does_not_answer(make: Callable[..., Scene]) -> None:
    scene = make(hangs_at=2, pause_s=7.0)
    until(lambda: scene.num_calls("squeue") == 2)
    asked_at = time.monotonic()
    until(lambda: scene.log_bytes() >= 500_000, QUICK_S)
    scene.stop()
    until(lambda: scene.facts().task("main").end is not None, QUICK_S)
    assert time.monotonic() < asked_at + 2 * QUICK_S
    assert scene.num_calls("sbatch") == 1
    links = scene.facts().task("main").jobs[1].links
    assert links[2].backend_id == "78"


def test_a_link_that_cannot_yet_queue_the_next_can_be_stopped(make: Callable[..., Scene]) -> None:
    scene = make(hangs_at=1, pause_s=0.0)
    until(lambda: scene.num_calls("squeue") == 1)
    scene.stop()
    until(lambda: scene.facts().task("main").end is not None, QUICK_S)
    assert not scene.facts().task("main").attempts, "no code of the user's ran before the next link was asked for"
