"""Listing, pulling and pushing of the outputs of a run's tasks, checked against their manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import NotFoundError
from windlass.core.names import nearest
from windlass.record.manifest import Manifest, build_manifest, read_manifest
from windlass.record.state import State
from windlass.runs import output_copies
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.remote.mirror import Mirror

__all__ = ["fetch", "listed", "output_folder", "pull", "push"]


def output_folder(run: RunFolder, task: str) -> Path:
    """Return the path of a task's output folder. Raises NotFoundError, naming the closest match."""
    tasks = run.facts().tasks
    if task not in tasks:
        close = nearest(task, tasks)
        hint = f"did you mean `{close}`?" if close else f"its tasks are: {', '.join(tasks)}"
        raise NotFoundError(f"run {run.id} has no task `{task}`", hint=hint, code="unknown-task")
    return run.out(task)


def fetch(run: RunFolder, home: Home, task: str) -> Path:
    """Return the path of a task's output folder, fetched first if it is at a site; see `Run.fetch_output`."""
    folder, mirror = output_folder(run, task), _mirror(run, home)
    return folder if mirror is None else mirror.fetch_outputs(task)


def listed(run: RunFolder, home: Home, task: str) -> Manifest:
    """Return the recorded manifest of a task's output, or a manifest of its current files (`at` is 0).

    Raises:
        NotFoundError: there is no such task, or it has no output.
    """
    folder = _output(run, task)
    mirror = _mirror(run, home)
    if mirror is not None:
        mirror.fetch_manifest(task)
    try:
        return read_manifest(folder, is_beside=True)
    except NotFoundError:
        if mirror is not None:
            folder = mirror.fetch_outputs(task)
        return build_manifest(folder, is_beside=True)


def pull(run: RunFolder, home: Home, task: str, to: Path, *, is_linked: bool = False) -> Path:
    """Copy a task's output to the local folder `to/<task>`; see `Run.pull_output`."""
    folder, manifest = _ready(run, home, task)
    target = to.absolute() / task
    output_copies.copy_folder(folder, manifest, target, is_linked=is_linked)
    return target


def push(run: RunFolder, home: Home, task: str, to: str) -> str:
    """Copy a task's output to `to/<task>`; see `Run.push_output`."""
    folder, manifest = _ready(run, home, task)
    return output_copies.send_folder(folder, manifest, to, task)


def _ready(run: RunFolder, home: Home, task: str) -> tuple[Path, Manifest]:
    """Return the local folder of a task's output, and its manifest."""
    folder, mirror = _output(run, task), _mirror(run, home)
    if mirror is not None:
        mirror.fetch_outputs(task)
    return folder, listed(run, home, task)


def _mirror(run: RunFolder, home: Home) -> Mirror | None:
    if not run.is_mirrored:
        return None
    from windlass.launcher.remote.mirror import mirror_of_run  # lazy: most runs are on this machine

    return mirror_of_run(run, home)


def _output(run: RunFolder, task: str) -> Path:
    folder = output_folder(run, task)
    facts = run.facts().tasks[task]
    if not run.is_mirrored and not folder.is_dir():
        what = "wrote nothing" if facts.state is State.SUCCEEDED else f"is {facts.state}"
        raise NotFoundError(f"task `{task}` of {run.id} has no output: it {what}", code="not-found")
    return folder
