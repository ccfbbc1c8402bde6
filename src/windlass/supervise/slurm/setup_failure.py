"""Handling of a link that fails before its supervisor starts, such as when modules do not load.

The batch script reports it with `windlass.pyz failed JOB_FOLDER LINK CAUSE MESSAGE`. It counts as an attempt that
failed before user code, and the retry policy decides what follows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.record import events
from windlass.record.causes import cause_of
from windlass.record.retry import Budgets, Decision, decide
from windlass.record.state import End, TaskFacts
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.gang.incarnation import enter_link
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.job import JobDocument

__all__ = ["end_link"]


def end_link(folder: Path, link: int, cause: str, message: str, environ: Mapping[str, str]) -> int:
    """Record that a link ended before its supervisor began, and queue or cancel the next links; return 0 when done.

    A late duplicate of the link, and a job that is over or superseded, record nothing.
    """
    job = JobDocument.read(folder / "job.json")
    incarnation = enter_link(folder, link, environ)
    if incarnation is None:
        return 0
    clock = SystemClock()
    journal = RunJournalView(
        Path(job.paths.run_dir) / "journal", job.task, 0, clock, incarnation=incarnation.name, on_record=lambda _: None
    )
    journal.widen()
    links = LinkManager(job, folder, incarnation, journal)
    task = journal.task()
    if task.end is None and task.newest_job == job.job:
        links.begin()
        end = End(str(cause_of(cause)), host=environ.get("SLURMD_NODENAME", os.uname().nodename), message=message)
        journal.append(events.ATTEMPT_ENDED, job=job.job, attempt=_next(task), epoch=0, end=end.to_data())
        decision = _decide(links, journal.task(), Budgets(job.settings.interrupted, job.settings.failed))
        if decision.verdict is None:
            links.queue_next(clock.monotonic())
            journal.close()
            return 0
        journal.append(
            events.TASK_ENDED,
            job=job.job,
            attempt=_next(task),
            verdict=str(decision.verdict),
            cause=decision.cause,
            message=decision.message,
        )
    links.cancel_rest()
    links.release_dependents()
    journal.close()
    return 0


def _decide(links: LinkManager, task: TaskFacts, budgets: Budgets) -> Decision:
    decision = decide(task, budgets)
    return links.after_last(task) or decision if decision.verdict is None else decision


def _next(task: TaskFacts) -> int:
    newest = task.newest_attempt
    return newest.number + 1 if newest is not None else 1
