"""From a plan to a running run: folder, checkout, environment, secrets, and then the jobs, each intended before it is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from windlass.backends import Backend, Submission, backend_named
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import is_locked, lock, read_json, write_json
from windlass.core.names import new_run_id, new_token
from windlass.launch.client import client_journal
from windlass.launch.prepare import Prepared
from windlass.pin import (
    BuiltEnvironment,
    ReplicaRecord,
    check_data,
    checkout,
    collect,
    ensure_environment,
    host_facts,
    resolve_code_folder,
    resolve_data,
)
from windlass.plan import Places, Plan, job_document
from windlass.plan.codec import decode, encode
from windlass.record import events
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument

__all__ = [
    "announce",
    "backend_of",
    "deliver_secrets",
    "intend",
    "is_furnished",
    "is_launching",
    "job_folder",
    "job_of",
    "start_run",
    "submission_of",
    "submit_intended",
]

_PLACES = "places.json"
_PROVENANCE = "provenance.json"


def start_run(prepared: Prepared, *, log: Callable[[str], None]) -> RunFolder:
    """Carry a plan out: everything up to the submission of all its tasks. Blocking; returns when the jobs are made.

    Args:
        log: gets progress lines (environment builds).
    Raises:
        WindlassError: something before the first job failed; no run is left behind.
    """
    run_id = new_run_id(prepared.experiment.name)
    content = json.dumps(prepared.plan.to_data(), indent=1, sort_keys=True).encode()
    with _launching(prepared.home, run_id):
        run = create(prepared.home, run_id, {"plan.json": content})
        try:
            _furnish(prepared, run, log)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        with client_journal(run.journal) as journal:
            announce(run, prepared.plan, journal)
            deliver_secrets(run, prepared.plan, prepared.home)
            intend(run, prepared.plan, {task.name: 1 for task in prepared.plan.tasks}, journal, resets_budgets=True)
            for task in prepared.plan.tasks:
                submit_intended(run, prepared.plan, prepared.home, task.name, 1, journal)
    return run


def is_launching(home: Home, run_id: str) -> bool:
    """Whether the command that launches this run still lives and is at it."""
    return is_locked(_launch_lock(home, run_id))


def is_furnished(run: RunFolder) -> bool:
    """Whether everything that the run's jobs need is in its folder."""
    return (run.path / _PROVENANCE).exists()


@contextmanager
def _launching(home: Home, run_id: str) -> Iterator[None]:
    """Tell other clients, from before the run's folder is there, that somebody is at it."""
    path = _launch_lock(home, run_id)
    try:
        with lock(path):
            yield
    finally:
        path.unlink(missing_ok=True)


def _launch_lock(home: Home, run_id: str) -> Path:
    return home.runs / f".{run_id}.launching"


def _furnish(prepared: Prepared, run: RunFolder, log: Callable[[str], None]) -> None:
    """The run's own checkout, its environment, its data's places; and the record of all that."""
    pins, home = prepared.plan.pins, prepared.home
    if pins.code.kind != "in-place":
        checkout(pins.code, prepared.code_folder, run.code, store=home.cache / "code.git")
    code = resolve_code_folder(pins.code, prepared.code_folder, run.code)
    cwd = code / pins.code.subdir if pins.code.kind != "in-place" else code
    project = cwd / prepared.experiment.env.uv if prepared.experiment.env.uv else cwd
    built = ensure_environment(pins.environment, project, home.cache, log=log, tree=pins.code.tree)
    for pin in pins.data.values():
        check_data(pin, prepared.base, cache=home.cache / "digests")
    places = _places(prepared, run, cwd, built)
    write_json(run.path / _PLACES, encode(places), syncs_folder=False)  # synced with the next
    documents = [job_of(run, prepared.plan, task.name, 1, "") for task in prepared.plan.tasks]
    write_json(run.path / _PROVENANCE, _provenance(prepared, run, documents, built))


def _places(prepared: Prepared, run: RunFolder, cwd: Path, built: BuiltEnvironment) -> Places:
    home, pins = prepared.home, prepared.plan.pins
    archive = ensure_archive(home.cache / "archives")
    return Places(
        run=run.id,
        run_dir=run.path,
        code=cwd,
        data={name: resolve_data(name, pin.source, prepared.base) for name, pin in pins.data.items()},
        path=built.bins,
        python_path=(*built.path_entries, archive),
        virtual_env=built.bin.parent if pins.environment.kind == "uv" else None,
        lease=home.leases,
    )


def _provenance(
    prepared: Prepared, run: RunFolder, documents: Iterable[JobDocument], built: BuiltEnvironment
) -> dict[str, object]:
    plan = prepared.plan
    replicas = [
        ReplicaRecord(task=document.task, rank=rank, command=replica.argv, variables={**document.env, **replica.env})
        for document in documents
        for rank, replica in enumerate(document.replicas)
    ]
    record = collect(
        run_id=run.id,
        spec=plan.experiment,
        overrides=plan.overrides,
        params=prepared.experiment.params,
        code=plan.pins.code,
        environment=plan.pins.environment,
        packages=built.packages,
        data=list(plan.pins.data.values()),
        replicas=replicas,
        secrets=sorted({use.name for task in plan.tasks for use in task.secrets}),
        host=host_facts(),
    )
    return {**record, "plan_hash": plan.plan_hash, "base": str(prepared.base)}


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
        journal.append(events.JOB_REFUSED, task=task, job=number, cause="start-failed", message=error.message)
        raise
    journal.append(
        events.JOB_SUBMITTED, task=task, job=number, backend_id=submission.backend_id, locator=submission.locator
    )


def job_folder(run: RunFolder, task: str, number: int) -> Path:
    """Folder of one submission."""
    return run.jobs / f"{task}-{number}"


def job_of(run: RunFolder, plan: Plan, task: str, number: int, token: str) -> JobDocument:
    """The job description of a task's submission."""
    return job_document(plan, plan.task(task), places=_read_places(run), job=number, token=token)


def _read_places(run: RunFolder) -> Places:
    try:
        return decode(Places, read_json(run.path / _PLACES))
    except FileNotFoundError as error:
        raise NotFoundError(f"run {run.id} has no {_PLACES}", code="run-incomplete") from error


def deliver_secrets(run: RunFolder, plan: Plan, home: Home) -> None:
    """Put the values that the run's tasks need where its supervisors find them; idempotent."""
    names = sorted({use.name for task in plan.tasks for use in task.secrets})
    if not names:
        return
    from windlass.secrets import deliver, open_secrets  # lazy: most runs have none

    token = run.id.replace(".", "_")
    path = deliver(open_secrets(home.path).require(names), token, home.path)
    write_json(run.path / _PLACES, encode(replace(_read_places(run), delivery=path)))


def submission_of(run: RunFolder, task: str, number: int) -> Submission | None:
    """The submission of a job as the journal knows it."""
    job = run.facts().task(task).jobs.get(number)
    if job is None or not job.is_submitted:
        return None
    return Submission(backend_id=job.backend_id, locator=job.locator, folder=job_folder(run, task, number))


def backend_of(plan: Plan) -> Backend:
    """The backend a plan is for."""
    return backend_named(plan.site.backend)
