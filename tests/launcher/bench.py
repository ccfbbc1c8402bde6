"""Runs without processes: a backend that queues, loses and refuses, and a pen for what supervisors would have said."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.archives import warm
from windlass import Options, Run, launch, spec
from windlass.backends import Rendered, Submission
from windlass.config.loading import from_data
from windlass.core.errors import PreconditionError
from windlass.launcher.client import client_journal
from windlass.launcher.prepare import Prepared, prepare
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.runs.home import Home
from windlass.testing.fake_backend import FakeBackend

__all__ = ["Bench", "PickyBackend", "commit"]


@dataclass
class PickyBackend(FakeBackend):
    """A fake scheduler that refuses the jobs of some tasks for good."""

    refuses: set[str] = field(default_factory=set)

    def submit(self, rendered: Rendered) -> Submission:
        task = rendered.folder.name.rpartition("-")[0]
        if task in self.refuses:
            raise PreconditionError(f"no node can hold {task}", code="unschedulable")
        return super().submit(rendered)

    @property
    def taken(self) -> list[str]:
        """The jobs it ever took, by the names of their folders."""
        return [job.rendered.folder.name for job in self._jobs.values()]

    def lose(self, name: str) -> None:
        """Let a job vanish, as a scheduler whose node burnt."""
        for job in self._jobs.values():
            if job.rendered.folder.name == name:
                job.is_cancelled = True


class Bench:
    """Plans and launches experiments in a folder of code."""

    def __init__(self, code: Path, home: Home) -> None:
        self.code = code
        self.home = home
        code.mkdir()
        warm(home)

    def prepare(self, data: dict[str, Any], options: Options | None = None) -> Prepared:
        """A plan of an experiment called `play`."""
        experiment = from_data(spec.Experiment, {"name": "play", **data}, source="play.yaml")
        return prepare(experiment, self.code, options or Options(allow_dirty=True), home=self.home)

    def launch(self, data: dict[str, Any] | None = None) -> Run:
        """A run; by default of one task called `main`."""
        return launch(self.prepare(data or {"run": "true"}))

    def tasks(self, *names: str, **more: Any) -> dict[str, Any]:
        """An experiment with these tasks."""
        return {"tasks": {name: {"run": "true"} for name in names}, **more}

    def only_run(self) -> Run:
        """The one run there is."""
        (folder,) = self.left()
        return Run.find(folder, self.home)

    def left(self) -> list[str]:
        """Everything in the folder of runs, hidden names included."""
        return sorted(path.name for path in self.home.runs.iterdir())

    def kinds(self, run: Run) -> list[str]:
        """The kinds of all records in the order they were written."""
        records = sorted(read_journal(run.folder.journal), key=lambda record: (record.at, record.seq))
        return [record.kind for record in records]

    def say_ended(self, run: Run, verdict: str, cause: str, *, task: str = "main", job: int = 1) -> None:
        """What the supervisor of a job says last."""
        with client_journal(run.folder.journal) as journal:
            journal.append(events.TASK_ENDED, task=task, job=job, attempt=1, verdict=verdict, cause=cause, message="")


def commit(folder: Path) -> None:
    """Make a folder a repository with one commit of all its files."""
    line = "git init -q -b main . && git add . && git commit -qm one"
    subprocess.run(["/bin/sh", "-ec", line], cwd=folder, check=True)
