"""Progress lines made from a run's journal."""

from __future__ import annotations

import signal

from windlass.core.phrases import duration
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.state import End

__all__ = ["Progress", "describe_end"]


def describe_end(end: End) -> str:
    """Return a description of an end, such as `killed: rank 1 on node3, ended by SIGKILL`."""
    code = _code_text(end.code)
    where = f"rank {end.rank}" + (f" on {end.host}" if end.host else "") if end.rank >= 0 else ""
    parts = [where, "" if code and code in end.message else code, end.message]
    parts = [part for part in parts if part]
    return f"{end.cause}: {', '.join(parts)}" if parts else end.cause


def _code_text(code: int) -> str:
    """Return a description of an exit code: both -9 (from a process) and 137 (from a shell) are `ended by SIGKILL`."""
    number = -code if code < 0 else code - 128
    if number in signal.Signals.__members__.values():
        return f"ended by {signal.Signals(number).name}"
    return f"signal {number}" if code < 0 else f"exit code {code}" if code else ""


class Progress:
    """Converter of journal records to progress lines, without repetitions."""

    def __init__(self) -> None:
        self._reason: dict[str, str] = {}
        self._step: dict[str, int] = {}
        self._started_at: dict[tuple[str, int], float] = {}

    def describe(self, record: Record) -> str:
        """Return the line for a record, or an empty string if there is nothing to show."""
        task = str(record.data.get("task", ""))
        match record.kind:
            case events.TASK_QUEUED:
                return self._queued(task, str(record.data["reason"]))
            case events.ATTEMPT_STARTED:
                return self._started(task, record)
            case events.ATTEMPT_ENDED:
                return self._ended(task, record)
            case events.JOB_LOST:
                return f"{task}: {record.data['message']}"
            case events.JOB_REFUSED:
                return f"{task}: rejected: {record.data['message']}"
            case events.CHECKPOINT:
                self._step[task] = max(self._step.get(task, -1), int(record.data["step"]))
            case events.NOTE:
                return f"{task + ': ' if task else ''}{record.data['message']}"
            case events.STOP_REQUESTED:
                return f"stop requested: {record.data['reason']}"
        return ""

    def _queued(self, task: str, reason: str) -> str:
        if not reason or self._reason.get(task) == reason:
            return ""
        self._reason[task] = reason
        return f"{task}: queued: {reason}"

    def _started(self, task: str, record: Record) -> str:
        number = int(record.data["attempt"])
        self._started_at[task, number] = record.at
        step = self._step.get(task, -1)
        resumed = f", from the checkpoint of step {step}" if number > 1 and step >= 0 else ""
        return f"{task}: attempt {number} started{resumed}"

    def _ended(self, task: str, record: Record) -> str:
        number, end = int(record.data["attempt"]), End.from_data(record.data["end"])
        began = self._started_at.get((task, number))
        after = f" after {duration(record.at - began)}" if began else ""
        return f"{task}: attempt {number} ended{after}: {describe_end(end)}"
