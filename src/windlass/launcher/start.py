"""Start of a run: create its folder, checkout, environment and secrets, then submit its jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath

from windlass.backends.protocol import CanSubmitMany
from windlass.backends.registry import backend_for
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.files import lock
from windlass.core.names import new_run_id
from windlass.core.tree import remove_tree
from windlass.launcher.client import Client, client_journal, deliver_secrets, launch_lock, rendered_job
from windlass.launcher.prepare import Prepared
from windlass.launcher.remote.shared_home import check_state_folder
from windlass.launcher.stage.stage import stage_run
from windlass.launcher.submit import announce, intend, submit_all
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create

__all__ = ["start_run", "start_runs"]


def start_run(
    prepared: Prepared,
    *,
    log: Callable[[str], None] = lambda line: None,
    run_id: str = "",
    stage_more: Callable[[RunFolder], None] = lambda run: None,
) -> RunFolder:
    """Launch a plan and return its run once all jobs are submitted. Blocking.

    Each job is recorded before it is submitted.

    Args:
        log: called with progress lines, for example about environment builds.
        run_id: unused id for the run; generated if empty.
        stage_more: adds files to the run's folder before the jobs, such as a checkpoint to start from.

    Raises:
        WindlassError: something before the first job failed; no run is left behind.
        PreconditionError: the place refused a task; the run is recorded as failed, and its other tasks as stopped.
        UnreachableError: the place cannot be reached; the next command that acts on the run submits the rest.
    """
    with ExitStack() as stack:
        run = _make(prepared, stack, log, run_id, stage_more)
        with client_journal(run.journal) as journal:
            refusal = _submit(prepared, run, journal)
    if refusal is not None:
        _record_refusal(run, prepared.home)
        raise refusal
    return run


def start_runs(
    prepared: Sequence[Prepared], *, log: Callable[[str], None], run_ids: Sequence[str] = ()
) -> list[RunFolder]:
    """Launch several plans; a backend may submit jobs with equal resources together. Blocking.

    Args:
        run_ids: unused ids for the runs; generated if empty.

    Raises:
        WindlassError: see `start_run`; raised for the first plan that fails. Earlier plans are started; all are if
            only submissions were refused.
    """
    with ExitStack() as stack:
        ids = run_ids or [""] * len(prepared)
        runs = [_make(one, stack, log, run_id) for one, run_id in zip(prepared, ids, strict=True)]
        _submit_together(list(zip(prepared, runs, strict=True)))
        refusals: list[PreconditionError | None] = []
        for one, run in zip(prepared, runs, strict=True):
            with client_journal(run.journal) as journal:
                refusals.append(_submit(one, run, journal))
    for one, run, refusal in zip(prepared, runs, refusals, strict=True):
        if refusal is not None:
            _record_refusal(run, one.home)
    first = next((refusal for refusal in refusals if refusal is not None), None)
    if first is not None:
        raise first
    return runs


def _record_refusal(run: RunFolder, home: Home) -> None:
    """Record the end of a refused run; call this after its launch, which holds the lock."""
    from windlass.launcher.reconcile.reconciler import reconcile_run  # lazy: few launches are refused

    reconcile_run(run, home)


def _submit(prepared: Prepared, run: RunFolder, journal: JournalWriter) -> PreconditionError | None:
    """Call `submit_all`; if the site cannot be reached, the hint warns not to launch again."""
    try:
        return submit_all(Client(run, prepared.home, prepared.plan), _jobs(prepared), journal)
    except UnreachableError as error:
        hint = f"do not launch again: {run.id} exists and starts once `windlass show {run.id} --reconcile` reaches the site"
        raise UnreachableError(error.message, hint=hint, code=error.code) from error


def _submit_together(made: Sequence[tuple[Prepared, RunFolder]]) -> None:
    """Submit all jobs together if the backend can do that; refused jobs are later submitted one by one."""
    found = [
        rendered_job(run, one.plan, one.home, task, number)[1]
        for one, run in made
        for task, number in _jobs(one).items()
    ]
    if len(found) < 2:
        return
    from windlass.launcher.remote.mirror import mirror_of  # lazy: most launches have one run

    mirrors = {run.path: mirror for one, run in made if (mirror := mirror_of(run, one.plan, one.home)) is not None}

    def push(folder: Path, there: PurePath) -> None:
        mirrors[folder.parent.parent].send_job(folder, there)

    backend = backend_for(made[0][0].plan.site, push=push if mirrors else None)
    if isinstance(backend, CanSubmitMany):
        with suppress(PreconditionError):
            backend.submit_many(found)


def _jobs(prepared: Prepared) -> dict[str, int]:
    return dict.fromkeys((task.name for task in prepared.plan.tasks), 1)


def _make(
    prepared: Prepared,
    stack: ExitStack,
    log: Callable[[str], None],
    run_id: str = "",
    stage_more: Callable[[RunFolder], None] = lambda run: None,
) -> RunFolder:
    """Create a run, stage it and record its jobs; it stays locked until the stack is closed."""
    check_state_folder(prepared.plan.site, prepared.home)
    run_id = run_id or new_run_id(prepared.experiment.name)
    content = json.dumps(prepared.plan.to_data(), indent=1, sort_keys=True).encode()
    stack.enter_context(_launching(prepared.home, run_id))
    run = create(prepared.home, run_id, {"plan.json": content})
    try:
        stage_more(run)
        stage_run(prepared, run, log)
        deliver_secrets(run, prepared.plan, prepared.home)
    except BaseException:
        remove_tree(run.path)
        raise
    with client_journal(run.journal) as journal:
        client = Client(run, prepared.home, prepared.plan)
        announce(client, journal)
        intend(client, _jobs(prepared), journal, resets_budgets=True)
    return run


@contextmanager
def _launching(home: Home, run_id: str) -> Iterator[None]:
    """Lock a run against other clients, before its folder exists."""
    path = launch_lock(home, run_id)
    try:
        with lock(path):
            yield
    finally:
        path.unlink(missing_ok=True)
