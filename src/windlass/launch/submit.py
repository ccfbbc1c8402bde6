"""The steps of a submission: announce the run, intend its jobs, then make each, or find the one that is there already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from windlass.backends import Backend, Submission, backend_named
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import is_locked, read_json, write_json
from windlass.core.names import new_token
from windlass.plan import Places, Plan, job_document
from windlass.plan.codec import decode, encode
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument

__all__ = [
    "PLACES",
    "PROVENANCE",
    "announce",
    "backend_of",
    "deliver_secrets",
    "has_secrets",
    "intend",
    "is_furnished",
    "is_launching",
    "job_folder",
    "job_of",
    "launch_lock",
    "remove_secrets",
    "submission_of",
    "submit_all",
    "submit_intended",
]

PLACES = "places.json"
PROVENANCE = "provenance.json"


def is_launching(home: Home, run_id: str) -> bool:
    """Whether the command that launches this run still lives and is at it."""
    return is_locked(launch_lock(home, run_id))


def is_furnished(run: RunFolder) -> bool:
    """Whether everything that the run's jobs need is in its folder."""
    return (run.path / PROVENANCE).exists()


def launch_lock(home: Home, run_id: str) -> Path:
    """The file that the command that launches a run holds locked, from before the run's folder is there."""
    return home.runs / f".{run_id}.launching"


def announce(run: RunFolder, plan: Plan, journal: JournalWriter) -> None:
    """Record that the run exists and what its tasks are."""
    tasks = {
        task.name: {
            "after": list(task.after),
            "replicas": task.nodes,
            "interrupted": task.interrupted,
            "failed": task.failed,
        }
        for task in plan.tasks
    }
    journal.append(events.RUN_CREATED, run=run.id, name=plan.name, why=plan.why, plan_hash=plan.plan_hash, tasks=tasks)
    for note in plan.notes:
        journal.append(events.NOTE, task="", message=note)


def intend(run: RunFolder, plan: Plan, jobs: dict[str, int], journal: JournalWriter, *, resets_budgets: bool) -> None:
    """Write down which jobs will be submitted, each with a fresh token, before anything is."""
    for task, number in jobs.items():
        journal.append(
            events.JOB_INTENDED,
            task=task,
            job=number,
            token=new_token(),
            backend=plan.site.backend,
            resets_budgets=resets_budgets,
        )


def submit_intended(run: RunFolder, plan: Plan, home: Home, task: str, number: int, journal: JournalWriter) -> None:
    """Submit a job whose intent is in the journal, or find the one that an earlier call made."""
    token = run.facts().task(task).jobs[number].token
    backend = backend_named(plan.site.backend)
    document = job_of(run, plan, task, number, token)
    rendered = backend.render(document, job_folder(run, task, number), ensure_archive(home.cache / "archives"))
    try:
        submission = backend.submit(rendered)
    except PreconditionError as error:
        _refuse(task, number, Cause.START_FAILED, error.message, journal)
        raise
    journal.append(
        events.JOB_SUBMITTED, task=task, job=number, backend_id=submission.backend_id, locator=submission.locator
    )


def submit_all(
    run: RunFolder, plan: Plan, home: Home, jobs: Mapping[str, int], journal: JournalWriter
) -> PreconditionError | None:
    """Submit intended jobs up to the first that is refused; the refusal is returned, for after a call of `keep`.

    Beside a refused task none of these goes on: tasks that were submitted are asked to stop, the others never start.
    """
    names = list(jobs)
    for index, name in enumerate(names):
        try:
            submit_intended(run, plan, home, name, jobs[name], journal)
        except PreconditionError as error:
            reason = f"task {name} was refused: {error.message}"
            others = {other: number for other, number in jobs.items() if other != name}
            if others:
                journal.append(events.STOP_REQUESTED, tasks=others, reason=reason, is_checkpoint_wanted=False)
            for other in names[index + 1 :]:
                _refuse(other, jobs[other], Cause.CANCELLED, reason, journal)
            return error
    return None


def _refuse(task: str, number: int, cause: Cause, message: str, journal: JournalWriter) -> None:
    journal.append(events.JOB_REFUSED, task=task, job=number, cause=str(cause), message=message)


def job_folder(run: RunFolder, task: str, number: int) -> Path:
    """Folder of one submission."""
    return run.jobs / f"{task}-{number}"


def job_of(run: RunFolder, plan: Plan, task: str, number: int, token: str) -> JobDocument:
    """The job description of a task's submission."""
    return job_document(plan, plan.task(task), places=_read_places(run), job=number, token=token)


def _read_places(run: RunFolder) -> Places:
    try:
        return decode(Places, read_json(run.path / PLACES))
    except FileNotFoundError as error:
        raise NotFoundError(f"run {run.id} has no {PLACES}", code="run-incomplete") from error


def deliver_secrets(run: RunFolder, plan: Plan, home: Home) -> None:
    """Put the values that the run's tasks need where its supervisors find them; idempotent."""
    names = sorted({use.name for task in plan.tasks for use in task.secrets})
    if not names:
        return
    from windlass.secrets import deliver, open_secrets  # lazy: most runs have none

    token = run.id.replace(".", "_")
    path = deliver(open_secrets(home.path).require(names), token, home.path)
    write_json(run.path / PLACES, encode(replace(_read_places(run), delivery=path)))


def remove_secrets(run: RunFolder) -> None:
    """Take away the values that were put there for the run; idempotent."""
    if not is_furnished(run):
        return
    delivery = _read_places(run).delivery
    if delivery is not None:
        from windlass.secrets import remove_delivery  # lazy: as above

        remove_delivery(delivery)


def has_secrets(run: RunFolder) -> bool:
    """Whether values lie ready for the run."""
    delivery = _read_places(run).delivery if is_furnished(run) else None
    return delivery is not None and delivery.exists()


def submission_of(run: RunFolder, task: str, number: int) -> Submission | None:
    """The submission of a job as the journal knows it."""
    job = run.facts().task(task).jobs.get(number)
    if job is None or not job.is_submitted:
        return None
    return Submission(backend_id=job.backend_id, locator=job.locator, folder=job_folder(run, task, number))


def backend_of(plan: Plan) -> Backend:
    """The backend a plan is for."""
    return backend_named(plan.site.backend)
