"""`windlass data build`: prepare an experiment's data without launching its tasks."""

from __future__ import annotations

from pathlib import Path

import click

from windlass.cli.completion.files import complete_experiment
from windlass.cli.planning import PlanFlags, PlanningVerb, planning_options, required_file
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import detach_option, json_option, verb
from windlass.core.errors import UsageError
from windlass.core.phrases import count, size

__all__ = ["build_command"]


@verb(
    "windlass data build experiment.yaml",
    "windlass data build experiment.yaml tokens --on isambard -d",
    name="build",
    cls=PlanningVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="FILE")
@click.argument("overrides", nargs=-1, metavar="[NAME | OVERRIDE]...", shell_complete=complete_experiment)
@detach_option
@planning_options
@json_option
@click.pass_context
def build_command(
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    detach: bool,
    flags: PlanFlags,
    is_json: bool,
) -> int:
    """Prepare an experiment's data (`data: {NAME: {build: COMMAND}}`) without running its tasks.

    This is a separate run; a later launch uses the data. Existing data is not built again.
    """
    if "windlass.command" in context.meta:
        raise UsageError("`windlass data build` takes a file, not a command", hint="give a FILE", code="usage")
    path = required_file(context, file)
    names = tuple(word for word in overrides if "=" not in word and not word.startswith(("-", "~")))
    changes = tuple(word for word in overrides if word not in names)
    options = flags.options()
    from windlass.launcher.api import launch  # lazy: after the cheap checks
    from windlass.launcher.prepare import prepare
    from windlass.launcher.stage.prepared_data import builds_alone
    from windlass.spec.load import load_experiment

    loaded = load_experiment(Path(path), changes)
    experiment = builds_alone(loaded.value, names)
    prepared = prepare(experiment, Path(path).absolute().parent, options, origins=loaded.origins, log=tell)
    builds = prepared.plan.pins.builds
    if all(pin.is_hit for pin in builds.values()):
        for pin in builds.values():
            tell(f"{pin.name} exists: sha256:{pin.digest[:12]}, {count(pin.num_files, 'file')}, {size(pin.size_bytes)}")
        if is_json:
            emit_json(
                "windlass.launch/1", {"is_new": False, "builds": {name: pin.digest for name, pin in builds.items()}}
            )
        return 0
    run = launch(prepared, log=tell)
    tell(f"{run.id}  plan {prepared.plan.plan_hash[:12]}  {run.folder.path}")
    code = 0
    if not detach:
        from windlass.cli.following import Following, follow_to_verdict  # lazy: not with -d

        code = follow_to_verdict(Following(run.folder, prepared.home, logs_to_stderr=is_json))
    if is_json:
        from windlass.cli.render.run import run_data  # lazy: only with --json

        emit_json("windlass.launch/1", {"is_new": True, **run_data(run.folder, run.facts)})
    elif detach:
        emit(run.id)
    return code
