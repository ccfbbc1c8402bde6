"""Steps of a submission: record the run, record its jobs, then submit each job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.backends.protocol import CanHold, Submission
from windlass.core.codec import encode
from windlass.core.errors import PreconditionError
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.state import jobs_to_let_go

if TYPE_CHECKING:
    from windlass.launcher.ports import ClientJournal, ClientPorts, RunRecord

__all__ = ["announce", "intend", "let_go", "submission_of", "submit_all", "submit_intended"]


def announce(ports: ClientPorts, journal: ClientJournal) -> None:
    """Record the run and its tasks."""
    plan = ports.plan
    tasks = {
        task.name: {
            "after": list(task.settings.after),
            "replicas": task.shape.nodes,
            "interrupted": task.settings.interrupted,
            "failed": task.settings.failed,
            **({"evaluates": encode(task.settings.evaluates)} if task.settings.evaluates else {}),
        }
        for task in plan.tasks
    }
    journal.append(
        events.RUN_CREATED, run=ports.files.id, name=plan.name, why=plan.why, plan_hash=plan.plan_hash, tasks=tasks
    )
    for note in plan.notes:
        journal.append(events.NOTE, task="", message=note)


def intend(ports: ClientPorts, jobs: Mapping[str, int], journal: ClientJournal, *, resets_budgets: bool) -> None:
    """Record the jobs to submit, each with a new token, before any is submitted."""
    for task, number in jobs.items():
        journal.append(
            events.JOB_INTENDED,
            task=task,
            job=number,
            token=ports.new_token(),
            backend=ports.plan.site.backend,
            resets_budgets=resets_budgets,
        )


def submit_intended(ports: ClientPorts, task: str, number: int, journal: ClientJournal) -> None:
    """Submit a recorded job, or find the one that an earlier call submitted."""
    backend, rendered = ports.rendered_job(task, number)
    try:
        submission = backend.submit(rendered)
    except PreconditionError as error:
        _refuse(task, number, Cause.START_FAILED, error.message, journal)
        raise
    planned = ports.plan.task(task)
    journal.append(
        events.JOB_SUBMITTED,
        task=task,
        job=number,
        backend_id=submission.backend_id,
        locator=submission.locator,
        is_held=bool(planned.settings.after or planned.settings.evaluates)
        and planned.chain.can_submit
        and isinstance(backend, CanHold),
    )
    if ports.site is not None:
        ports.site.push()
    let_go(ports)


def submit_all(ports: ClientPorts, jobs: Mapping[str, int], journal: ClientJournal) -> PreconditionError | None:
    """Submit recorded jobs until one is refused; return that refusal, or None.

    After a refusal the run stops: submitted tasks get a stop request, the other tasks never start.
    """
    names = list(jobs)
    for index, name in enumerate(names):
        try:
            submit_intended(ports, name, jobs[name], journal)
        except PreconditionError as error:
            reason = f"task {name} was refused: {error.message}"
            others = {other: number for other, number in jobs.items() if other != name}
            if others:
                journal.append(events.STOP_REQUESTED, tasks=others, reason=reason, is_checkpoint_wanted=False)
            for other in names[index + 1 :]:
                _refuse(other, jobs[other], Cause.CANCELLED, reason, journal)
            return error
    return None


def let_go(ports: ClientPorts) -> list[str]:
    """Release held jobs whose upstream tasks have ended; return the names of their tasks."""
    waiting = jobs_to_let_go(ports.files.facts())
    if not waiting:
        return []
    backend = ports.backend()
    if not isinstance(backend, CanHold):
        return []
    for name, job in waiting.items():
        submission = submission_of(ports.files, name, job.number)
        if submission is not None:
            backend.let_go(submission)
    return list(waiting)


def _refuse(task: str, number: int, cause: Cause, message: str, journal: ClientJournal) -> None:
    journal.append(events.JOB_REFUSED, task=task, job=number, cause=str(cause), message=message)


def submission_of(run: RunRecord, task: str, number: int) -> Submission | None:
    """Return a job's submission as recorded, or None."""
    job = run.facts().task(task).jobs.get(number)
    if job is None or not job.is_submitted:
        return None
    return Submission(backend_id=job.backend_id, locator=job.locator, folder=run.job_folder(task, number))
