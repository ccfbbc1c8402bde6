"""Writes journals of runs as clients and supervisors do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.core.clock import Clock, FakeClock
from windlass.record import events
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create


class RunScript:
    """One run, step by step."""

    def __init__(
        self,
        home: Home,
        run_id: str,
        clock: Clock | None = None,
        *,
        task: str = "train",
        replicas: int = 1,
        others: Sequence[str] = (),
    ) -> None:
        self.clock = clock or FakeClock()
        self.task = task
        self.run: RunFolder = create(home, run_id, {"plan.json": json.dumps({"name": run_id[:-9]}).encode()})
        self.client = JournalWriter(self.run.journal, "client-1", self.clock)
        self.job = JournalWriter(self.run.journal, f"{task}.0", self.clock)
        tasks = {
            name: {"after": [], "replicas": replicas if name == task else 1, "interrupted": 50, "failed": 0}
            for name in (task, *others)
        }
        self.client.append(events.RUN_CREATED, run=run_id, name=run_id[:-9], why="a test", plan_hash="h", tasks=tasks)

    def submit(self, job: int = 1) -> RunScript:
        facts: dict[str, Any] = {"token": "t", "backend": "local", "resets_budgets": False}
        self.client.append(events.JOB_INTENDED, task=self.task, job=job, **facts)
        return self

    def start(self, attempt: int = 1, job: int = 1) -> RunScript:
        facts: dict[str, Any] = {"leader": "n0", "address": "127.0.0.1", "port": 1}
        self.job.append(events.ATTEMPT_STARTED, task=self.task, job=job, attempt=attempt, epoch=1, **facts)
        return self

    def end(self, verdict: str = "succeeded", cause: str = "ok", attempt: int = 1, job: int = 1) -> RunScript:
        facts: dict[str, Any] = {"verdict": verdict, "cause": cause, "message": ""}
        self.job.append(events.TASK_ENDED, task=self.task, job=job, attempt=attempt, **facts)
        return self

    def metric(
        self, name: str, step: int, value: float | str, *, attempt: int = 1, rank: int = 0, writer: str = ""
    ) -> RunScript:
        pen = JournalWriter(self.run.journal, writer or f"{self.task}.{rank}.report-1-{attempt}", self.clock)
        pen.append(events.METRICS, task=self.task, attempt=attempt, rank=rank, step=step, values={name: value})
        pen.close()
        return self

    def close(self) -> RunFolder:
        self.client.close()
        self.job.close()
        return self.run


def home_in(folder: Path) -> Home:
    return Home(folder / "home")
