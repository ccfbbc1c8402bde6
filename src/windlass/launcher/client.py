"""Access to a run for commands on this machine: its files, secrets, backend and site; see `launcher.ports`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.backends.protocol import Backend, Rendered
from windlass.backends.registry import backend_for
from windlass.core.clock import Clock, SystemClock
from windlass.core.codec import decode, encode
from windlass.core.errors import NotFoundError
from windlass.core.files import is_locked, lock, write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token
from windlass.core.process import identify
from windlass.plan.job import RunPaths, job_document
from windlass.plan.plan import Plan
from windlass.record.journal import JournalWriter
from windlass.record.state import RunFacts
from windlass.runs.home import Home
from windlass.runs.recovery import missing_records
from windlass.runs.store import RunFolder
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument

if TYPE_CHECKING:
    from windlass.launcher.remote.mirror import Mirror

__all__ = [
    "BILL",
    "PLACES",
    "PROVENANCE",
    "Client",
    "backend_of",
    "client_journal",
    "deliver_secrets",
    "has_secrets",
    "is_launching",
    "is_staged",
    "job_of",
    "launch_lock",
    "mirror_if_remote",
    "remove_secrets",
    "rendered_job",
]

PLACES = "places.json"
PROVENANCE = "provenance.json"
BILL = "image.spdx.json"
"""File with the image's packages as SPDX, if a tool for that was installed."""


class Client:
    """Implementation of `ports.ClientPorts` for one command that acts on one run.

    Args:
        plan: the run's plan, if it is known; otherwise it is read when it is needed.
    """

    def __init__(self, run: RunFolder, home: Home, plan: Plan | None = None) -> None:
        self.run, self.home = run, home
        self.clock: Clock = SystemClock()
        self.files = ClientFiles(run, home)
        self._plan = plan

    @cached_property
    def plan(self) -> Plan:
        """See `ClientPorts.plan`."""
        return self._plan or Plan.from_data(self.run.plan())

    @cached_property
    def site(self) -> Mirror | None:
        """See `ClientPorts.site`."""
        if not self.run.is_mirrored:
            return mirror_if_remote(self.run, self.plan, self.home)
        from windlass.launcher.remote.mirror import mirror_of  # lazy: most runs are on this machine

        return mirror_of(self.run, self.plan, self.home)

    def backend(self, *, patience_s: float | None = None) -> Backend:
        """See `ClientPorts.backend`."""
        return backend_of(self.plan, patience_s=patience_s)

    def rendered_job(self, task: str, number: int) -> tuple[Backend, Rendered]:
        """See `ClientPorts.rendered_job`."""
        return rendered_job(self.run, self.plan, self.home, task, number)

    def new_token(self) -> str:
        """See `ClientPorts.new_token`."""
        return new_token()

    def deliver_secrets(self) -> None:
        """See `ClientPorts.deliver_secrets`."""
        deliver_secrets(self.run, self.plan, self.home)

    def remove_secrets(self) -> None:
        """See `ClientPorts.remove_secrets`."""
        remove_secrets(self.run, self.site)


class ClientFiles:
    """Implementation of `ports.RunFiles` for one run on this machine."""

    def __init__(self, run: RunFolder, home: Home) -> None:
        self._run, self._home = run, home
        self.id = run.id
        self.facts = run.facts
        self.job_folder = run.job_folder

    def has_plan(self) -> bool:
        """See `RunFiles.has_plan`."""
        return (self._run.path / "plan.json").exists()

    def is_launching(self) -> bool:
        """See `RunFiles.is_launching`."""
        return is_launching(self._home, self.id)

    def is_staged(self) -> bool:
        """See `RunFiles.is_staged`."""
        return is_staged(self._run)

    def is_own(self) -> bool:
        """See `RunFiles.is_own`."""
        return self._run.path.stat().st_uid == os.geteuid()

    def has_secrets(self) -> bool:
        """See `RunFiles.has_secrets`."""
        return has_secrets(self._run)

    def missing_records(self, facts: RunFacts) -> list[str]:
        """See `RunFiles.missing_records`."""
        return missing_records(self._run.path, facts)

    def open_journal(self) -> AbstractContextManager[JournalWriter]:
        """See `RunFiles.open_journal`."""
        return client_journal(self._run.journal)

    def lock(self) -> AbstractContextManager[None]:
        """See `RunFiles.lock`."""
        return lock(self._run.path / "reconcile.lock")

    def remove_launch_lock(self) -> None:
        """See `RunFiles.remove_launch_lock`."""
        launch_lock(self._home, self.id).unlink(missing_ok=True)


@contextmanager
def client_journal(journal: Path, clock: Clock | None = None) -> Iterator[JournalWriter]:
    """Yield this process's writer for a run's journal; its file is created with its first record."""
    found = identify(os.getpid())
    ticks = found.start_ticks if found else 0
    host = os.uname().nodename.partition(".")[0]
    writer = JournalWriter(journal, f"client-{host}-{os.getpid()}-{ticks}", clock or SystemClock())
    try:
        yield writer
    finally:
        writer.close()


def is_launching(home: Home, run_id: str) -> bool:
    """Return whether the command that launches a run is still running."""
    return is_locked(launch_lock(home, run_id))


def is_staged(run: RunFolder) -> bool:
    """Return whether all files that the run's jobs need are in its folder."""
    return (run.path / PROVENANCE).exists()


def launch_lock(home: Home, run_id: str) -> Path:
    """Return the path of the lock that a launch command takes before it creates the run's folder."""
    return home.runs / f".{run_id}.launching"


def rendered_job(run: RunFolder, plan: Plan, home: Home, task: str, number: int) -> tuple[Backend, Rendered]:
    """Return the backend and the rendered request for a recorded job."""
    token = run.facts().task(task).jobs[number].token
    mirror = mirror_if_remote(run, plan, home)
    backend = backend_for(plan.site, push=mirror.send_job if mirror is not None else None)
    document = job_of(run, plan, task, number, token)
    if mirror is not None:
        document = mirror.with_bundle(document)
    archive = ensure_archive(home.cache / "archives") if mirror is None else Path(mirror.archive_at_site)
    return backend, backend.render(document, run.job_folder(task, number), archive)


def job_of(run: RunFolder, plan: Plan, task: str, number: int, token: str) -> JobDocument:
    """Return the job document for one submission of a task."""
    return job_document(plan, plan.task(task), places=_read_places(run), job=number, token=token)


def _read_places(run: RunFolder) -> RunPaths:
    try:
        return decode(RunPaths, read_json(run.path / PLACES))
    except FileNotFoundError as error:
        raise NotFoundError(f"run {run.id} has no {PLACES}", code="run-damaged") from error


def deliver_secrets(run: RunFolder, plan: Plan, home: Home) -> None:
    """Write the secrets that the run's tasks need for its supervisors; idempotent."""
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
    """Record the names of the run's secrets at Beaker, where their values are stored."""
    from windlass.launcher.beaker.secrets import beaker_secret_names, delivery_in_job  # lazy: few sites use Beaker

    places = replace(_read_places(run), secrets=beaker_secret_names(plan), delivery=delivery_in_job(run.id))
    write_json(run.path / PLACES, encode(places))


def remove_secrets(run: RunFolder, mirror: Mirror | None = None) -> None:
    """Remove a run's delivered secrets, on this machine or at its site; idempotent."""
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


def mirror_if_remote(run: RunFolder, plan: Plan, home: Home) -> Mirror | None:
    """Return the run's mirror (`mirror.mirror_of`), without importing anything if the site is this machine."""
    profile = plan.site.profile
    if profile is None or not (profile.ssh or profile.kind == "beaker"):
        return None
    from windlass.launcher.remote.mirror import (
        mirror_of,  # lazy: saves 20 ms of a launch on this machine
    )

    return mirror_of(run, plan, home)


def backend_of(plan: Plan, *, patience_s: float | None = None) -> Backend:
    """Return the backend for a plan; `patience_s` as in `backend_for`."""
    return backend_for(plan.site, patience_s=patience_s)
