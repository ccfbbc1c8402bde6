"""Steps of a submission: record the run, record its jobs, then submit each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.backends.protocol import Backend, CanHold, Rendered, Submission
from windlass.backends.registry import backend_for
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import is_locked, write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token
from windlass.launcher.remote.mirrored import mirror_if_remote
from windlass.plan.codec import decode, encode
from windlass.plan.job import RunPaths, job_document
from windlass.plan.plan import Plan
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.journal import JournalWriter
from windlass.record.state import jobs_to_let_go
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument

if TYPE_CHECKING:
    from windlass.launcher.remote.mirror import Mirror

__all__ = [
    "BILL",
    "PLACES",
    "PROVENANCE",
    "announce",
    "backend_of",
    "deliver_secrets",
    "has_secrets",
    "intend",
    "is_launching",
    "is_staged",
    "job_folder",
    "job_of",
    "launch_lock",
    "let_go",
    "remove_secrets",
    "rendered_job",
    "submission_of",
    "submit_all",
    "submit_intended",
]

PLACES = "places.json"
PROVENANCE = "provenance.json"
BILL = "image.spdx.json"
"""File with the image's packages as SPDX, if a tool for that was installed."""


def is_launching(home: Home, run_id: str) -> bool:
    """Return whether the command that launches a run is still running."""
    return is_locked(launch_lock(home, run_id))


def is_staged(run: RunFolder) -> bool:
    """Return whether all files that the run's jobs need are in its folder."""
    return (run.path / PROVENANCE).exists()


def launch_lock(home: Home, run_id: str) -> Path:
    """Return the path of the lock that a launch command takes before it creates the run's folder."""
    return home.runs / f".{run_id}.launching"


def announce(run: RunFolder, plan: Plan, journal: JournalWriter) -> None:
    """Record the run and its tasks."""
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
    """Record the jobs to submit, each with a new token, before any is submitted."""
    for task, number in jobs.items():
        journal.append(
            events.JOB_INTENDED,
            task=task,
            job=number,
            token=new_token(),
            backend=plan.site.backend,
            resets_budgets=resets_budgets,
        )


def rendered_job(run: RunFolder, plan: Plan, home: Home, task: str, number: int) -> tuple[Backend, Rendered]:
    """Return the backend and the rendered request of a recorded job."""
    token = run.facts().task(task).jobs[number].token
    mirror = mirror_if_remote(run, plan, home)
    backend = backend_for(plan.site, push=mirror.send_job if mirror is not None else None)
    document = job_of(run, plan, task, number, token)
    if mirror is not None:
        document = mirror.with_bundle(document)
    archive = ensure_archive(home.cache / "archives") if mirror is None else Path(mirror.archive_at_site)
    return backend, backend.render(document, job_folder(run, task, number), archive)


def submit_intended(run: RunFolder, plan: Plan, home: Home, task: str, number: int, journal: JournalWriter) -> None:
    """Submit a recorded job, or find the one that an earlier call submitted."""
    mirror = mirror_if_remote(run, plan, home)
    backend, rendered = rendered_job(run, plan, home, task, number)
    try:
        submission = backend.submit(rendered)
    except PreconditionError as error:
        _refuse(task, number, Cause.START_FAILED, error.message, journal)
        raise
    journal.append(
        events.JOB_SUBMITTED,
        task=task,
        job=number,
        backend_id=submission.backend_id,
        locator=submission.locator,
        is_held=bool(plan.task(task).after) and plan.task(task).chain.can_submit and isinstance(backend, CanHold),
    )
    if mirror is not None:
        mirror.push()
    let_go(run, plan)


def submit_all(
    run: RunFolder, plan: Plan, home: Home, jobs: Mapping[str, int], journal: JournalWriter
) -> PreconditionError | None:
    """Submit recorded jobs up to the first refusal, and return that.

    After a refusal the run stops: submitted tasks get a stop request, the other tasks never start.
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


def let_go(run: RunFolder, plan: Plan) -> list[str]:
    """Release held jobs whose predecessors have ended; return the names of their tasks."""
    waiting = jobs_to_let_go(run.facts())
    if not waiting:
        return []
    backend = backend_of(plan)
    if not isinstance(backend, CanHold):
        return []
    for name, job in waiting.items():
        submission = submission_of(run, name, job.number)
        if submission is not None:
            backend.let_go(submission)
    return list(waiting)


def _refuse(task: str, number: int, cause: Cause, message: str, journal: JournalWriter) -> None:
    journal.append(events.JOB_REFUSED, task=task, job=number, cause=str(cause), message=message)


def job_folder(run: RunFolder, task: str, number: int) -> Path:
    """Return the folder of one submission."""
    return run.jobs / f"{task}-{number}"


def job_of(run: RunFolder, plan: Plan, task: str, number: int, token: str) -> JobDocument:
    """Return the job document of one submission of a task."""
    return job_document(plan, plan.task(task), places=_read_places(run), job=number, token=token)


def _read_places(run: RunFolder) -> RunPaths:
    try:
        return decode(RunPaths, read_json(run.path / PLACES))
    except FileNotFoundError as error:
        raise NotFoundError(f"run {run.id} has no {PLACES}", code="run-damaged") from error


def deliver_secrets(run: RunFolder, plan: Plan, home: Home) -> None:
    """Write the secrets of the run's tasks for its supervisors; idempotent."""
    names = plan.secret_names
    if not names:
        return
    if plan.site.backend == "beaker":
        _name_secrets(run, plan)
        return
    from windlass.secrets.delivery import deliver  # lazy: most runs have no secrets
    from windlass.secrets.lookup import open_secrets

    found = open_secrets(home.path).require(sorted(set(names.values())))
    values = {variable: found[name] for variable, name in sorted(names.items())}
    mirror = mirror_if_remote(run, plan, home)
    if mirror is not None:
        path = Path(mirror.deliver(values))
    else:
        folder = None if plan.site.profile is None else home.path / "delivery"
        path = deliver(values, run.id.replace(".", "_"), home.path, folder=folder)
    write_json(run.path / PLACES, encode(replace(_read_places(run), delivery=path)))


def _name_secrets(run: RunFolder, plan: Plan) -> None:
    """Record the names of the secrets at Beaker, where the values are stored."""
    from windlass.launcher.beaker.secrets import beaker_secret_names, delivery_in_job  # lazy: few sites use Beaker

    places = replace(_read_places(run), secrets=beaker_secret_names(plan), delivery=delivery_in_job(run.id))
    write_json(run.path / PLACES, encode(places))


def remove_secrets(run: RunFolder, mirror: Mirror | None = None) -> None:
    """Remove the delivered secrets of a run, on this machine or at its site; idempotent."""
    if not is_staged(run):
        return
    if mirror is not None:
        mirror.remove_delivery()
        return
    delivery = _read_places(run).delivery
    if delivery is not None:
        from windlass.supervise.remote.delivery import remove_delivery  # lazy: as above

        remove_delivery(delivery)


def has_secrets(run: RunFolder) -> bool:
    """Return whether a run's delivered secrets still exist."""
    delivery = _read_places(run).delivery if is_staged(run) else None
    if delivery is None:
        return False
    from windlass.launcher.remote.mirror import has_delivered  # lazy: most runs have no secrets

    return delivery.exists() or has_delivered(run)


def submission_of(run: RunFolder, task: str, number: int) -> Submission | None:
    """Return the recorded submission of a job, or None."""
    job = run.facts().task(task).jobs.get(number)
    if job is None or not job.is_submitted:
        return None
    return Submission(backend_id=job.backend_id, locator=job.locator, folder=job_folder(run, task, number))


def backend_of(plan: Plan, *, patience_s: float | None = None) -> Backend:
    """Return the backend of a plan; `patience_s` as in `backend_for`."""
    return backend_for(plan.site, patience_s=patience_s)
