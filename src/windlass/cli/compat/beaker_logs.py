"""`windlass beaker logs` and `fetch`: output and results of an experiment's jobs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.screen import emit, printable, tell, write_raw
from windlass.cli.verb import verb
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.phrases import count

if TYPE_CHECKING:
    from windlass.backends.beaker.values import BeakerJob, BeakerLogLine

__all__ = ["fetch_command", "logs_command"]


@verb(
    "windlass beaker logs 01J8XYZ",
    "windlass beaker logs --follow 01J8XYZ --replica 0",
    "windlass beaker logs 01J8XYZ --save logs/",
    name="logs",
)
@click.argument("experiment")
@click.option("-f", "--follow", is_flag=True, help="Follow until the experiment ends, across preemptions.")
@click.option("--replica", "ranks", type=click.IntRange(min=0), multiple=True, help="Only this replica; repeatable.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Save the logs in this folder; a second call adds new lines.",
)
def logs_command(experiment: str, follow: bool, ranks: tuple[int, ...], save: Path | None) -> None:
    """Print the output of an experiment's jobs: every replica, every attempt."""
    from windlass.backends.beaker.following import follow_all, keep_all  # lazy: not for a help page
    from windlass.backends.beaker.service import BeakerService

    service = BeakerService()
    seen = service.get(experiment)
    told = _Printer(len(seen.tasks))
    if save is None:
        follow_all(service, seen.id, told, ranks=ranks, follow=follow)
        return
    _open_folder(save)
    files = keep_all(service, seen.id, save, ranks=ranks, follow=follow, **({"told": told} if follow else {}))
    tell(f"{count(len(files), 'log')} in {save}")


@verb(
    "windlass beaker fetch 01J8XYZ results/", "windlass beaker fetch 01J8XYZ results/ --only checkpoints/", name="fetch"
)
@click.argument("experiment")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--task", default="", help="Task; required if there are several.")
@click.option("--replica", "rank", type=click.IntRange(min=0), default=0, show_default=True, help="Replica.")
@click.option("--only", default="", metavar="PREFIX", help="Only files whose path starts with this.")
def fetch_command(experiment: str, folder: Path, task: str, rank: int, only: str) -> None:
    """Download the results of a replica's latest job; complete files are not downloaded again."""
    from windlass.backends.beaker.service import BeakerService  # lazy: not for a help page

    service = BeakerService()
    found = [job for job in service.jobs(experiment, ranks=(rank,)) if job.results]
    jobs = [job for job in found if task in ("", job.task)]
    if not jobs:
        hint = f"windlass beaker show {experiment}"
        whose = f"replica {rank}" + (f" of task `{task}`" if task else "")
        raise NotFoundError(f"{whose} of {experiment} has no results", hint=hint, code="beaker-not-found")
    names = dict.fromkeys(job.task for job in jobs)
    if len(names) > 1:
        message = f"{experiment} has several tasks: {', '.join(names)}"
        raise UsageError(message, hint=f"add --task {jobs[0].task}", code="missing-argument")
    _open_folder(folder)
    for path in service.download(jobs[-1].results, folder, prefix=only):
        emit(printable(str(path)))


def _open_folder(folder: Path) -> None:
    """Create a folder to write to; raise PreconditionError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK) else "Permission denied"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        message = f"cannot write to `{folder}`: {why}"
        raise PreconditionError(message, hint="choose another folder", code="not-writable")


class _Printer:
    """Printer of log lines, which labels each with its replica and task if there are several.

    Args:
        num_jobs: number of concurrent jobs: the replicas of all tasks.
    """

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs

    def __call__(self, job: BeakerJob, line: BeakerLogLine) -> None:
        task = f"{printable(job.task)} " if self._num_jobs > job.size else ""
        prefix = f"[{task}{job.rank}.{job.attempt}] ".encode() if self._num_jobs > 1 else b""
        write_raw(prefix + line.message.removesuffix(b"\n") + b"\n")
