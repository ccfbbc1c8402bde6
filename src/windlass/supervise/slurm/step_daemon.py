"""Slurm's daemons above a replica: the step's, and on the first node also the batch script's.

They report the end of a task to Slurm, and pass Slurm's signals to a task. If one of them is killed, Slurm assumes that
the job still runs, and `srun` waits, until its walltime. So a replica that exits checks them, and cancels its job if
one is dead. A leader whose step has no daemon asks regularly whether its job is over, since no `scancel` reaches it
(`LinkManager.is_job_over`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from windlass.core.process import ProcessId, identify, is_alive, parent_of
from windlass.supervise.gang.incarnation import START_MARK
from windlass.supervise.job import JobDocument

__all__ = ["StepDaemons"]

_NAME = "slurmstepd"
_PAUSE_S = 2.0
_GIVE_UP_AFTER_S = 1800.0
"""Time limit for a controller that is down; after that the walltime ends the job."""


class StepDaemons:
    """Slurm's daemons above this process, a task of a step, when it began; its children may also use this object.

    Args:
        environ: environment of the task.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._task, self._of_step = os.getpid(), os.getppid()
        self._of_batch = _batch_daemon(environ.get(START_MARK, ""))

    @property
    def is_step_abandoned(self) -> bool:
        """Return whether this step's daemon is dead, so that the task has another parent."""
        return parent_of(self._task) not in (0, self._of_step)

    @property
    def is_batch_abandoned(self) -> bool:
        """Return whether the batch script's daemon was on this node and is dead."""
        return self._of_batch is not None and not is_alive(self._of_batch)

    def end_abandoned_job(self, folder: Path, rank: int, incarnation: str) -> None:
        """Cancel this job if one of its daemons is dead; blocks until Slurm no longer has the job, or gives up.

        The task has ended, or the next link continues it.
        """
        if not (self.is_step_abandoned or self.is_batch_abandoned):
            return
        from windlass.supervise.chain.scheduler import SchedulerError  # lazy: rarely needed
        from windlass.supervise.slurm.scheduler import SlurmScheduler

        job = JobDocument.read(folder / "job.json")
        _note(job, rank, incarnation, "a slurmstepd of its job was killed, so the job was cancelled at its end")
        scheduler, deadline = SlurmScheduler(job), time.monotonic() + _GIVE_UP_AFTER_S
        while time.monotonic() < deadline:
            with contextlib.suppress(SchedulerError):
                state = scheduler.end_this_start()
                if not state or (state == "COMPLETING" and not self.is_step_abandoned):
                    return  # this process is the only one left for Slurm
            time.sleep(_PAUSE_S)


def _batch_daemon(mark: str) -> ProcessId | None:
    """Return the daemon above the batch script; None on all other nodes."""
    host, _, rest = mark.partition("/")
    number = rest.partition("/")[0]
    if host != os.uname().nodename or not number.isdigit():
        return None
    with contextlib.suppress(OSError):
        if Path(f"/proc/{number}/comm").read_text().strip() == _NAME:
            return identify(int(number))
    return None


def _note(job: JobDocument, rank: int, incarnation: str, message: str) -> None:
    from windlass.core.clock import SystemClock  # lazy: as above
    from windlass.record import events
    from windlass.supervise.gang.journal_view import RunJournalView

    with contextlib.suppress(OSError):  # informational
        folder = Path(job.paths.run_dir) / "journal"
        journal = RunJournalView(
            folder, job.task, rank, SystemClock(), incarnation=incarnation, on_record=lambda _: None
        )
        journal.append(events.NOTE, message=message)
        journal.close()
