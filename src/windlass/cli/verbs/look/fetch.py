"""`windlass fetch`: bring the outputs of a run at a site reached over ssh to this machine."""

from __future__ import annotations

import click

from windlass.cli.completion.runs import complete_tasks
from windlass.cli.finding import found_run
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import json_option, run_argument, verb
from windlass.core.errors import NotFoundError
from windlass.launch.run import Run
from windlass.runs.home import Home

__all__ = ["fetch_command"]


@verb("windlass fetch last", "windlass fetch hello-7hq2mx4p --task train", name="fetch")
@run_argument()
@click.option("--task", "-t", default=None, shell_complete=complete_tasks, help="Only the output of this task.")
@json_option
def fetch_command(run: str, task: str | None, is_json: bool) -> None:
    """Bring a run's outputs here and print their folders; of a run on this machine they are here already.

    What an earlier call brought does not travel again. `windlass verify` compares it with what was recorded.
    """
    home = Home.default()
    found = Run(found_run(run, home), home)
    folders = {}
    for name in [task] if task is not None else list(found.facts.tasks):
        try:
            folders[name] = found.fetch_output(name)
        except NotFoundError as error:
            if task is not None or error.code == "run-gone-at-site":
                raise
            tell(f"note: task {name} has no output there")
    if is_json:
        emit_json("windlass.fetch/1", {"run": found.id, "outputs": {name: str(path) for name, path in folders.items()}})
        return
    for name, path in folders.items():
        emit(f"{name}  {path}")
