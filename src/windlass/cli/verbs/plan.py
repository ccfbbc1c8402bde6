"""`windlass plan`: everything that would happen, nothing done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from windlass.cli.completing import complete_experiment
from windlass.cli.planning import PlanningVerb, options_of, planning_options, required_file
from windlass.cli.screen import emit, tell
from windlass.cli.verb import json_option, verb
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.launch import Prepared

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
@click.option("--render", is_flag=True, help="Print what would be submitted: job.json and command line of every task.")
@json_option
@click.pass_context
def plan_command(
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    on: str,
    snapshot: bool,
    allow_dirty: bool,
    best_effort: bool,
    debug: bool,
    render: bool,
    is_json: bool,
) -> None:
    """Show everything that would happen; do nothing.

    Works offline and needs no scheduler. OVERRIDES change the file: `tasks.train.nodes=2`, `--params.lr=3e-3`, `'~limit.time'`.
    """
    if "windlass.command" in context.meta:
        raise UsageError("`windlass plan` plans a file, not a command", hint="windlass launch -- COMMAND", code="usage")
    path = required_file(context, file)
    from windlass.launch import prepare_file  # lazy: after the cheap checks
    from windlass.plan import page

    options = options_of(
        on=on, snapshot=snapshot, allow_dirty=allow_dirty, best_effort=best_effort, debug=debug, is_dry=True
    )
    prepared = prepare_file(path, overrides, options)
    if render:
        _render(prepared)
    elif is_json:
        emit(json.dumps(prepared.plan.to_data(), indent=2, ensure_ascii=False))
    else:
        emit(page(prepared.plan).rstrip("\n"))


def _render(prepared: Prepared) -> None:
    """What the backend would get, with a made-up run id; the environment's folder is known only when it is built."""
    from windlass.backends import backend_named  # lazy: only this option needs them
    from windlass.plan import Places, job_document

    run = f"{prepared.plan.name}-xxxxxxxx"
    folder = prepared.home.path / "runs" / run
    places = Places(
        run=run,
        run_dir=folder,
        code=folder / "code" / prepared.plan.pins.code.subdir,
        data={name: prepared.base / pin.source.removeprefix("file:") for name, pin in prepared.plan.pins.data.items()},
        lease=prepared.home.path / "leases",
    )
    backend = backend_named(prepared.plan.site.backend)
    jobs = []
    for task in prepared.plan.tasks:
        document = job_document(prepared.plan, task, places=places, job=1, token="x" * 32)
        rendered = backend.render(
            document, folder / "jobs" / f"{task.name}-1", prepared.home.path / "cache" / "windlass.pyz"
        )
        jobs.append({"task": task.name, "argv": list(rendered.argv), "files": _files(rendered.files)})
    tell("made up here and real in a launch: the run's id, the token, the path of windlass.pyz and of the environment")
    emit(json.dumps({"schema": "windlass.render/1", "backend": backend.name, "jobs": jobs}, indent=2))


def _files(files: object) -> dict[str, object]:
    assert isinstance(files, dict)  # as every backend makes them
    return {name: json.loads(text) if name.endswith(".json") else text for name, text in files.items()}
