"""`windlass train worker`: answer prompts for the learners of a run."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from windlass.cli.completion.files import complete_folder
from windlass.cli.times import as_duration
from windlass.cli.verb import verb
from windlass.core.errors import UsageError

__all__ = ["worker_command"]


@verb(
    "windlass train worker checkpoints/grpo",
    "windlass train worker --task train    # in a task beside the one that learns",
    name="worker",
)
@click.argument("folder", required=False, shell_complete=complete_folder)
@click.option("--task", metavar="TASK", help="Work for this task of the same run, in place of a folder.")
@click.option(
    "--wait",
    "wait_s",
    default="10m",
    show_default=True,
    callback=as_duration,
    metavar="DURATION",
    help="Longest time without a learner.",
)
@click.option("--device", help="Where to compute. [default: a GPU if there is one]")
def worker_command(folder: str | None, task: str | None, wait_s: float, device: str | None) -> None:
    """Generate answers for the learner of a run of `grpo` or `distill` with `async.place=join`.

    FOLDER is the run's folder of checkpoints. A worker finds the learner there, also one that starts later. When a
    learner dies or stops, its workers go on with what they hold, and join the next one. They end with the run.

    Exits with 0 once the run is finished, with 7 if there was no learner for too long.
    """
    from windlass import report  # lazy: not for a help page

    if (folder is None) == (task is None):
        hint = "windlass train worker checkpoints/grpo, or --task train"
        raise UsageError("give either FOLDER or --task", hint=hint, code="missing-argument")
    if task is not None and not report.is_active():
        message = "`--task` works only in a task of windlass"
        raise UsageError(message, hint="give the folder of checkpoints", code="invalid-value")
    place = report.place()
    where = place.checkpoints.parent / task if task is not None else Path(str(folder))
    from windlass.post.workers.worker import serve_learners  # lazy: torch costs seconds

    host = socket.gethostname()
    name = f"{place.task}-{place.rank}-{host}-{os.getpid()}" if report.is_active() else f"{host}-{os.getpid()}"
    serve_learners(where.absolute(), name=name, wait_s=wait_s, device=device)
