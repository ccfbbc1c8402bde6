"""Second copy of the record of a task's end, in its job's folder, which survives damage to the journal file.

The journal remains authoritative; the copy is read only if the journal has no end of the task. It is the same record,
framed as in the journal, so it names its writer and the number of records in that writer's file.
"""

from __future__ import annotations

from pathlib import Path

from windlass.core.files import write_atomic
from windlass.record import events
from windlass.record.frames import Record, decode, encode
from windlass.record.shapes import is_well_formed

__all__ = ["VERDICT", "read_verdict", "write_verdict"]

VERDICT = "verdict.wj"


def write_verdict(job_folder: Path, record: Record) -> None:
    """Write a copy of a `task-ended` record. Durable on return; raises OSError."""
    write_atomic(job_folder / VERDICT, encode(record))


def read_verdict(job_folder: Path) -> Record | None:
    """Return the copy of the record; None if it is missing or damaged."""
    try:
        record = decode((job_folder / VERDICT).read_bytes())
    except OSError:
        return None
    if record is None or record.kind != events.TASK_ENDED or not is_well_formed(record):
        return None
    return record
