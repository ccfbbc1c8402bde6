"""Exit reports of windlass's programs inside a replica: a line in the log, and a cause in the journal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.journal import JournalWriter

__all__ = ["log_line", "report_end"]


def log_line(text: str) -> None:
    """Write a line to the replica's log."""
    sys.stderr.write(f"windlass: {text}\n")
    sys.stderr.flush()


def report_end(environ: Mapping[str, str], cause: Cause, message: str, *, code: int = 1) -> int:
    """Record durably why this replica ends; return the code to exit with.

    Outside a job, or if the journal cannot be written, the report is only in the log.
    """
    log_line(message)
    with contextlib.suppress(KeyError, ValueError, OSError, WindlassError):
        task, rank = environ["WINDLASS_TASK"], int(environ["WINDLASS_RANK"])
        attempt = int(environ["WINDLASS_ATTEMPT"])
        writer = JournalWriter(
            Path(environ["WINDLASS_JOURNAL"]), f"{task}.{rank}.wrapper-{os.getpid()}-{attempt}", SystemClock()
        )
        writer.append(
            events.FINISH, task=task, attempt=attempt, rank=rank, code=code, cause=str(cause), message=message
        )
        writer.close()
    return code
