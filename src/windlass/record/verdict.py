"""The second copy of a task's end, in its job's folder: it outlives damage to the journal's own file.

The journal stays the record; the copy is read only where the journal has no end of a task. It is the record itself,
framed as in the journal, so it names its writer and how many records that writer's file had.
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
    """Keep a copy of a `task-ended` record. Durable when it returns; raises OSError."""
    write_atomic(job_folder / VERDICT, encode(record))


def read_verdict(job_folder: Path) -> Record | None:
    """The copy, or None where there is none, or none that is whole."""
    try:
        record = decode((job_folder / VERDICT).read_bytes())
    except OSError:
        return None
    if record is None or record.kind != events.TASK_ENDED or not is_well_formed(record):
        return None
    return record
