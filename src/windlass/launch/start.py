"""From a plan to a running run: folder, checkout, environment, secrets, and then the jobs, each intended before it is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.core.files import lock, write_json
from windlass.core.names import new_run_id
from windlass.launch.client import client_journal
from windlass.launch.keeper import keep
from windlass.launch.prepare import Prepared
from windlass.launch.submit import (
    PLACES,
    PROVENANCE,
    announce,
    deliver_secrets,
    intend,
    job_of,
    launch_lock,
    submit_all,
)
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
from windlass.plan import Places
from windlass.plan.codec import encode
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument

__all__ = ["start_run"]


def start_run(prepared: Prepared, *, log: Callable[[str], None]) -> RunFolder:
    """Carry a plan out: everything up to the submission of all its tasks. Blocking; returns when the jobs are made.

    Args:
        log: gets progress lines (environment builds).

    Raises:
        WindlassError: something before the first job failed; no run is left behind.
        PreconditionError: the place refused a task; the run is on record as failed, and its other tasks as stopped.
        UnreachableError: the place did not answer; whoever looks at the run next submits what is missing.
    """
    run_id = new_run_id(prepared.experiment.name)
    content = json.dumps(prepared.plan.to_data(), indent=1, sort_keys=True).encode()
    with _launching(prepared.home, run_id):
        run = create(prepared.home, run_id, {"plan.json": content})
        try:
            _furnish(prepared, run, log)
            deliver_secrets(run, prepared.plan, prepared.home)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        with client_journal(run.journal) as journal:
            announce(run, prepared.plan, journal)
            jobs = dict.fromkeys((task.name for task in prepared.plan.tasks), 1)
            intend(run, prepared.plan, jobs, journal, resets_budgets=True)
            refusal = submit_all(run, prepared.plan, prepared.home, jobs, journal)
    if refusal is not None:
        keep(run, prepared.home)  # only now: it leaves alone what is being launched
        raise refusal
    return run


@contextmanager
def _launching(home: Home, run_id: str) -> Iterator[None]:
    """Tell other clients, from before the run's folder is there, that somebody is at it."""
    path = launch_lock(home, run_id)
    try:
        with lock(path):
            yield
    finally:
        path.unlink(missing_ok=True)


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
    write_json(run.path / PLACES, encode(places), syncs_folder=False)  # synced with the next
    documents = [job_of(run, prepared.plan, task.name, 1, "") for task in prepared.plan.tasks]
    write_json(run.path / PROVENANCE, _provenance(prepared, run, documents, built))


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
