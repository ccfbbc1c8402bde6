"""`windlass plan`: show what a launch would do."""

from __future__ import annotations

import json

import click

from windlass.cli.completion.files import complete_experiment
from windlass.cli.planning import PlanFlags, PlanningVerb, planning_options, required_file
from windlass.cli.screen import emit, emit_page, tell
from windlass.cli.verb import json_option, verb
from windlass.core.errors import UsageError

__all__ = ["plan_command"]


@verb(
    "windlass plan experiment.yaml",
    "windlass plan experiment.yaml tasks.train.nodes=2 params.lr=3e-3",
    name="plan",
    cls=PlanningVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="FILE")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_experiment)
@planning_options
@click.option("--render", is_flag=True, help="Print job.json and the command line of every task.")
@json_option
@click.pass_context
def plan_command(
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    flags: PlanFlags,
    render: bool,
    is_json: bool,
) -> None:
    """Show what a launch would do, without doing it.

    Needs no scheduler. Announces every network request: a registry for an image that is not local, a remote data source, a
    site's Python. A dirty tree that a launch would reject is planned with a note.

    OVERRIDES change the file: `tasks.train.nodes=2`, `--params.lr=3e-3`, `'~limit.time'`.
    """
    if "windlass.command" in context.meta:
        raise UsageError("`windlass plan` plans a file, not a command", hint="windlass launch -- COMMAND", code="usage")
    path = required_file(context, file)
    from windlass.launcher.prepare import prepare_file  # lazy: after the cheap checks
    from windlass.launcher.preview import Preview
    from windlass.plan.page import plan_page

    options = flags.options(is_dry=True)
    prepared = prepare_file(path, overrides, options, log=tell, preview=Preview())
    if render:
        from windlass.cli.render.submission import emit_rendered_data  # lazy: only for this option

        emit_rendered_data(prepared)
    elif is_json:
        emit(json.dumps(prepared.plan.to_data(), indent=2, ensure_ascii=False))
    else:
        from windlass.launcher.stage.image import image_presence  # lazy: only for this page

        emit_page(plan_page(prepared.plan, image_is=image_presence(prepared.plan)).rstrip("\n"))
