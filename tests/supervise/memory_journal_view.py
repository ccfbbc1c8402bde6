"""The ledger of a core without a disk: records in a list, facts by the shipped fold."""

from __future__ import annotations

from typing import Any

from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.state import End, RunFacts, TaskFacts


class MemoryJournalView:
    """One run with one task, `train`, whose first job was submitted."""

    def __init__(self, writer: str = "train.0") -> None:
        self.clock = FakeClock()
        self.facts = RunFacts()
        self.records: list[Record] = []
        self.writer = writer
        self.intend(1)

    def refresh(self) -> None:
        """There is nothing that is not known."""

    def task(self) -> TaskFacts:
        return self.facts.task("train")

    def append(self, kind: str, **data: Any) -> Record:
        return self.said_by(self.writer, kind, **data)

    def said_by(self, writer: str, kind: str, **data: Any) -> Record:
        record = Record(kind, writer, len(self.records) + 1, self.clock.now(), {"task": "train", **data})
        self.records.append(record)
        self.facts.apply(record)
        return record

    def intend(self, job: int, *, resets_budgets: bool = False) -> None:
        facts = {"job": job, "token": f"token{job}", "backend": "local", "resets_budgets": resets_budgets}
        self.said_by("client", events.JOB_INTENDED, **facts)

    def stop(self, *, checkpoint: bool = False) -> None:
        tasks = {"train": self.task().newest_job}
        self.said_by("client", events.STOP_REQUESTED, tasks=tasks, reason="by hand", is_checkpoint_wanted=checkpoint)

    def end_attempt(self, number: int, cause: str, *, job: int = 1, epoch: int = 1, writer: str = "train.1") -> None:
        end = End(cause, message=cause).to_data()
        self.said_by(writer, events.ATTEMPT_ENDED, job=job, attempt=number, epoch=epoch, end=end)

    def end_task(self, verdict: str, cause: str, *, job: int = 1) -> None:
        facts = {"job": job, "attempt": 1, "verdict": verdict, "cause": cause, "message": ""}
        self.said_by("train.1", events.TASK_ENDED, **facts)

    def kinds(self) -> list[str]:
        """What the supervisor itself wrote."""
        return [record.kind for record in self.records if record.writer == self.writer]

    def last(self, kind: str) -> dict[str, Any]:
        return next(record.data for record in reversed(self.records) if record.kind == kind)
