"""`windlass launch`: run an experiment file or a command, and follow it to its end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_each, complete_experiment, complete_folder
from windlass.cli.planning import PlanFlags, PlanningVerb, planning_options, required_file
from windlass.cli.screen import emit, emit_json, tell
from windlass.cli.verb import detach_option, json_option, verb
from windlass.core.errors import PreconditionError, UsageError

if TYPE_CHECKING:
    from windlass.launcher.prepare import Options, Prepared

__all__ = ["launch_command", "launch_each"]


@verb(
    "windlass launch experiment.yaml",
    "windlass launch experiment.yaml tasks.train.nodes=2 params.lr=3e-3 -d",
    "windlass launch --gpus 1 -- python train.py --lr 3e-3",
    "windlass launch experiment.yaml --each params.seed=1,2,3,4 --on isambard",
    "windlass launch nightly.yaml --if-changed    # in cron or CI",
    name="launch",
    cls=PlanningVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="FILE | -- COMMAND")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_experiment)
@detach_option
@planning_options
@click.option("--render", is_flag=True, help="Print the exact script that would be submitted; submit nothing.")
@click.option(
    "--each",
    metavar="KEY=A,B,...",
    multiple=True,
    shell_complete=complete_each,
    help="One run per value or combination; one job array on a scheduler.",
)
@click.option("--if-changed", is_flag=True, help="Do nothing if a run of the same plan succeeded or is active.")
@click.option("--name", default="", help="Name of a COMMAND's experiment. [default: its program]")
@click.option("--gpus", metavar="N", default="", help="GPUs per node of a COMMAND: `1` or `4 x gh200`.")
@click.option("--nodes", metavar="N", type=click.IntRange(min=1), help="Nodes of a COMMAND.")
@click.option(
    "--env-uv",
    metavar="DIR",
    default="",
    shell_complete=complete_folder,
    help="Project folder with a COMMAND's lock file.",
)
@json_option
@click.pass_context
def launch_command(  # noqa: PLR0917 - click passes them by name
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    detach: bool,
    flags: PlanFlags,
    render: bool,
    each: tuple[str, ...],
    if_changed: bool,
    name: str,
    gpus: str,
    nodes: int | None,
    env_uv: str,
    is_json: bool,
) -> int:
    """Run an experiment file or a single command, and follow it to its end.

    Log lines go to standard output, progress to standard error. Ctrl-C detaches; the run continues. Exits with 0 if the
    run succeeded, with 1 if not.

    Overrides change the file for this run: `tasks.train.nodes=2`, `--params.lr=3e-3`, `'~limit.time'` (removes a key;
    quoted for the shell).
    """
    command = context.meta.get("windlass.command")
    if command is None:
        path = required_file(context, file)
        _check_file_only(gpus=gpus, nodes=nodes, env_uv=env_uv)
    options = flags.options(is_dry=render)
    if not (if_changed or render or each or flags.on not in ("", "local")):
        _start_guard_early()
    named = (*overrides, *([f"name={name}"] if name else []))
    if each:
        if command is not None:
            raise UsageError(
                "`--each` needs a FILE, not a command", hint="write the command into an experiment file", code="usage"
            )
        if render or if_changed:
            message = f"`--each` and `{'--render' if render else '--if-changed'}` are mutually exclusive"
            raise UsageError(message, hint="give the value as an override: params.seed=1", code="usage")
        return launch_each(path, named, each, options, is_json=is_json)
    if command is None:
        from windlass.launcher.prepare import prepare_file  # lazy: after the cheap checks

        prepared = prepare_file(path, named, options, log=tell)
    else:
        prepared = _prepare_command(command, overrides, options, name=name, gpus=gpus, nodes=nodes, env_uv=env_uv)
    if render:
        from windlass.cli.render.submission import emit_scripts  # lazy: only for this option

        emit_scripts(prepared)
        return 0
    if if_changed and _is_unchanged(prepared, is_json=is_json):
        return 0
    return _start(prepared, is_detached=detach, is_json=is_json)


def _start_guard_early() -> None:
    """Start the guard during planning, because its imports take time; problems with the home are reported later."""
    from windlass.backends.local.early_guard import start_early_guard  # lazy: only for a launch
    from windlass.runs.home import Home
    from windlass.supervise.archive import ensure_archive

    with contextlib.suppress(PreconditionError, OSError):
        start_early_guard(ensure_archive(Home.default().cache / "archives"))


def _check_file_only(*, gpus: str, nodes: int | None, env_uv: str) -> None:
    """Raise UsageError for options that only a command accepts; a file needs an override instead."""
    given = {
        "--gpus": (gpus, "tasks.TASK.gpus=N"),
        "--nodes": (nodes, "tasks.TASK.nodes=N"),
        "--env-uv": (env_uv, "env.uv=DIR"),
    }
    for option, (value, override) in given.items():
        if value:
            message = f"`{option}` works only with a command: `windlass launch {option} ... -- COMMAND`"
            raise UsageError(message, hint=f"for a file use the override {override}", code="usage")


def _prepare_command(
    command: tuple[str, ...],
    overrides: tuple[str, ...],
    options: Options,
    *,
    name: str,
    gpus: str,
    nodes: int | None,
    env_uv: str,
) -> Prepared:
    """Plan an experiment whose single task runs a command."""
    from windlass.cli.one_command import experiment_of  # lazy: not for a file
    from windlass.launcher.prepare import prepare

    experiment = experiment_of(command, overrides, name=name, gpus=gpus, nodes=nodes, env_uv=env_uv)
    return prepare(experiment, Path.cwd(), options, overrides=overrides, log=tell)


def _is_unchanged(prepared: Prepared, *, is_json: bool) -> bool:
    """Return whether a run of the same plan is active or has succeeded, and print which run.

    Active runs are reconciled first, since they may have died with their machine.
    """
    from windlass.cli.finding import reconciled  # lazy: only for this option
    from windlass.runs.index import Index  # lazy: SQLite, only for this option
    from windlass.runs.store import RunFolder

    index = Index(prepared.home)
    index.refresh()
    same = [row for row in index.rows(name=prepared.plan.name) if row.plan_hash == prepared.plan.plan_hash]
    for row in same:
        if not row.is_terminal and row.state != "unknown":
            for line in reconciled(RunFolder(prepared.home.runs / row.id), prepared.home):
                tell(f"{row.id}: {line}")
    index.refresh()
    for row in index.rows(name=prepared.plan.name):
        is_good = row.state == "succeeded" or not (row.is_terminal or row.state == "unknown")
        if row.plan_hash == prepared.plan.plan_hash and is_good:
            tell(f"unchanged: {row.id} {row.state} with the same plan ({row.plan_hash[:12]})")
            if is_json:
                emit_json(
                    "windlass.launch/1",
                    {"run": row.id, "state": row.state, "plan_hash": row.plan_hash, "is_new": False},
                )
            return True
    return False


def _start(prepared: Prepared, *, is_detached: bool, is_json: bool) -> int:
    from windlass.launcher.api import launch  # lazy: after the cheap checks

    run = launch(prepared, log=tell)
    tell(f"{run.id}  plan {prepared.plan.plan_hash[:12]}  {run.folder.path}")
    for note in prepared.plan.notes if is_detached else ():  # otherwise they are printed while following
        tell(f"  note: {note}")
    code = 0
    if not is_detached:
        from windlass.cli.following import Following, follow_to_verdict  # lazy: not with -d

        code = follow_to_verdict(Following(run.folder, prepared.home, logs_to_stderr=is_json))
    if is_json:
        from windlass.cli.render.run import run_data  # lazy: only with --json

        emit_json("windlass.launch/1", {"is_new": True, **run_data(run.folder, run.facts)})
    elif is_detached:
        emit(run.id)
        tell(f"  windlass logs {run.id} --follow | windlass show {run.id} | windlass stop {run.id}")
    return code


def launch_each(path: Path, overrides: Sequence[str], each: Sequence[str], options: Options, *, is_json: bool) -> int:
    """Launch one run for each combination of values and print the run ids, one per line."""
    from windlass.launcher.api import launch_many  # lazy: after the cheap checks
    from windlass.launcher.prepare import prepare_file

    prepared = [prepare_file(path, (*overrides, *point), options, log=tell) for point in combinations(each)]
    runs = launch_many(prepared, log=tell)
    if is_json:
        emit_json("windlass.launch-each/1", {"runs": [run.id for run in runs]})
        return 0
    for run, point in zip(runs, combinations(each), strict=True):
        emit(run.id)
        tell(f"  {' '.join(point)}")
    tell(f"  windlass ps {prepared[0].plan.name} | windlass stop RUN")
    return 0


def combinations(each: Sequence[str]) -> list[tuple[str, ...]]:
    """Expand `["a=1,2", "b=x"]` to `[("a=1", "b=x"), ("a=2", "b=x")]`; raise UsageError for a missing value."""
    axes = []
    for text in each:
        key, equals, values = text.partition("=")
        found = [value for value in values.split(",") if value]
        if not (key and equals and found):
            raise UsageError(f"no values in `--each {text}`", hint="--each params.seed=1,2,3", code="usage")
        axes.append([f"{key}={value}" for value in found])
    return list(itertools.product(*axes))
