"""`windlass rerun`: start a new run with an old run's pins."""

from __future__ import annotations

import click

from windlass.cli.completion.files import complete_places
from windlass.cli.completion.runs import complete_run_overrides
from windlass.cli.finding import found_run
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import detach_option, json_option, run_argument, verb
from windlass.launcher.api import launch
from windlass.launcher.rerun import Rerun, prepare_rerun
from windlass.runs.home import Home

__all__ = ["rerun_command"]


@verb(
    "windlass rerun last",
    "windlass rerun hello-7hq2mx4p params.seed=2 -d",
    "windlass rerun last --on isambard",
    "windlass rerun last --on docker env.image=python:3.12 '~env.uv'",
    name="rerun",
)
@run_argument()
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_run_overrides)
@click.option(
    "--on", metavar="SITE[/PARTITION]", default="", shell_complete=complete_places, help="Run at this site instead."
)
@click.option(
    "--best-effort", is_flag=True, help="Ignore settings that the site does not support, and print a note for each."
)
@click.option("--reshape", is_flag=True, help="Use more nodes if a node has too few GPUs for a task.")
@detach_option
@json_option
def rerun_command(
    run: str, overrides: tuple[str, ...], on: str, best_effort: bool, reshape: bool, detach: bool, is_json: bool
) -> int:
    """Start a new run with the same pins: code, environment and data as they were.

    Starts from the beginning, not from the old run's checkpoints; `retry` and `resume` continue the old run. For changed
    code or data use `windlass launch FILE`, which makes new pins.

    OVERRIDES are added to those of the old run: parameters, resources and limits, but nothing pinned, such as
    `params.seed=2`, `tasks.train.memory=32GiB`, `limit.time=2h`. With `--on` another kind of site they may also set the
    environment there (`env.image=...`). Settings that do not work at that site are an error.
    """
    home = Home.default()
    old = found_run(run, home)
    how = Rerun(on=on, overrides=overrides, best_effort=best_effort, reshape=reshape)
    prepared = prepare_rerun(old, home, how=how, log=tell)
    for note in prepared.plan.notes:
        if note.startswith(f"the image of {old.id}"):
            tell(f"note: {note}")
    new = launch(prepared, log=tell)
    changes = f" with {' '.join(overrides)}" if overrides else ""
    tell(f"{new.id}  the plan of {old.id}{changes}{f' on {on}' if on else ''}  {new.folder.path}")
    code = 0
    if not detach:
        from windlass.cli.following import Following, follow_to_verdict  # lazy: not with -d

        code = follow_to_verdict(Following(new.folder, home, logs_to_stderr=is_json))
    if is_json:
        from windlass.cli.render.run import run_data  # lazy: only with --json

        emit_json("windlass.launch/1", {"is_new": True, **run_data(new.folder, new.facts)})
    elif detach:
        emit(new.id)
    return code
