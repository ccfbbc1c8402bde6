"""`windlass sweep`: search over an experiment's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from windlass.cli.completion.files import complete_experiment, complete_file
from windlass.cli.completion.runs import complete_metrics, complete_sweeps, complete_trials
from windlass.cli.planning import PlanFlags, PlanningVerb, planning_options, required_file
from windlass.cli.screen import emit_json, emit_page, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from windlass.tune.sweep.handle import SweepHandle

__all__ = ["sweep_command"]


@click.group(
    cls=Family,
    name="sweep",
    epilog=examples_page(
        "windlass sweep launch experiment.yaml", "windlass sweep show last", "windlass sweep best last --json"
    ),
)
def sweep_command() -> None:
    """Search over an experiment's settings; each trial is a run with its own values.

    The `sweep:` section of the experiment file defines the space, metric, searcher and scheduler. SWEEP is a sweep's name,
    its beginning or end, or `last`.
    """


_sweep = click.argument("sweep", metavar="SWEEP", shell_complete=complete_sweeps)


def _found(ref: str) -> SweepHandle:
    from windlass.cli.sweep.on_cluster import refreshed  # lazy: not for a help page
    from windlass.tune.sweep.handle import SweepHandle

    return refreshed(SweepHandle.find(ref))


@verb(
    "windlass sweep launch experiment.yaml",
    "windlass sweep launch experiment.yaml --on isambard -d sweep.samples=200",
    "windlass sweep launch experiment.yaml --in-process    # for a debugger",
    name="launch",
    cls=PlanningVerb,
)
@click.argument("file", required=False, type=click.Path(path_type=str), metavar="FILE")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_experiment)
@click.option("-d", "--detach", is_flag=True, help="Return at once; the sweep continues without this command.")
@click.option("--in-process", is_flag=True, help="Run a `trainable`'s trials one by one in this process.")
@click.option("--name", default="", help="Name of the sweep. [default: EXPERIMENT-8 letters]")
@planning_options
@json_option
@click.pass_context
def launch_command(
    context: click.Context,
    file: str | None,
    overrides: tuple[str, ...],
    detach: bool,
    in_process: bool,
    name: str,
    flags: PlanFlags,
    is_json: bool,
) -> int:
    """Start the sweep of an experiment file and follow it to its end.

    `--on` also takes a cluster of `windlass cluster ls`: head and trials then run there, and Ctrl-C stops nothing.
    Elsewhere Ctrl-C stops the sweep's head but not its runs; `windlass sweep resume` continues it. If the terminal is closed, the
    sweep continues in the background, as with `-d`; `windlass sweep show SWEEP --follow` shows it. Exits with 0 if the
    sweep finished and at least one trial succeeded.
    """
    if detach and in_process:
        message = "`--detach` and `--in-process` are mutually exclusive"
        raise UsageError(message, hint="give one of them", code="usage")
    path = required_file(context, file)
    options = flags.options()
    from windlass.cli.sweep.on_cluster import launch_on_cluster  # lazy: after the cheap checks
    from windlass.cli.sweep.running import go_on
    from windlass.runs.home import Home
    from windlass.tune.sweep.cluster.launching import cluster_named
    from windlass.tune.sweep.handle import SweepHandle
    from windlass.tune.sweep.preparing import prepare_sweep

    home = Home.default()
    cluster = cluster_named(options.on, home)
    if cluster is not None:
        if in_process:
            message = f"`--in-process` and `--on {options.on}` are mutually exclusive: trials run on the cluster"
            raise UsageError(message, hint="give one of them", code="conflicting-options")
        return launch_on_cluster(
            path, overrides, options, cluster, home, name=name, is_detached=detach, is_json=is_json
        )
    made = prepare_sweep(path, overrides, options, name=name, log=tell)
    for note in made.example.plan.notes:
        if not note.startswith("context.group="):
            tell(f"  note: {note}")
    handle = SweepHandle(made.create())
    return go_on(handle, made.prepared.home, is_detached=detach, in_process=in_process, is_json=is_json)


@verb("windlass sweep ls", "windlass sweep ls --json", name="ls")
@json_option
def ls_command(is_json: bool) -> None:
    """List sweeps, newest first."""
    from windlass.cli.render.sweep import row_data, sweep_lines  # lazy: here and below, not for a help page
    from windlass.tune.sweep.finding import list_sweeps

    rows = list_sweeps()
    if is_json:
        emit_json("windlass.sweeps/1", {"sweeps": [row_data(row) for row in rows]})
        return
    if not rows:
        tell("no sweeps yet; start one with `windlass sweep launch FILE`")
        return
    for line in sweep_lines(rows):
        emit_page(line)


@verb("windlass sweep show last", "windlass sweep show digits-7hq2mx4p --follow", name="show")
@_sweep
@click.option("-f", "--follow", is_flag=True, help="Follow until it is finished.")
@json_option
def show_command(sweep: str, follow: bool, is_json: bool) -> None:
    """Show one sweep: trials, best so far, and why trials wait."""
    from windlass.cli.render.sweep import headless_lines, show_lines, sweep_data

    handle = _found(sweep)
    if is_json:
        emit_json("windlass.sweep/1", sweep_data(handle))
        return
    if follow:
        from windlass.cli.sweep.on_cluster import show_follow
        from windlass.tune.views.watching import watch

        if show_follow(handle) is not None:
            return

        watch(handle.folder, follows=True)
        for line in headless_lines(handle):
            tell(line)
        return
    for line in show_lines(handle):
        emit_page(line)


@verb("windlass sweep best last", "windlass sweep best last --metric loss --mode min", name="best")
@_sweep
@click.option("--metric", default="", shell_complete=complete_metrics, help="Metric. [default: the sweep's first]")
@click.option(
    "--mode", type=click.Choice(["min", "max"]), default=None, help="Direction of the metric: `min` or `max`."
)
@json_option
def best_command(sweep: str, metric: str, mode: str | None, is_json: bool) -> None:
    """Print the best trial: values, score, checkpoint, and the command to run it again."""
    from windlass.cli.render.sweep import best_lines, trial_data

    handle = _found(sweep)
    best = handle.best(metric, mode or "")
    if is_json:
        emit_json("windlass.trial/1", {"sweep": handle.name, **trial_data(handle, best)})
        return
    for line in best_lines(handle, best, metric):
        emit_page(line)


@verb("windlass sweep why last 7", name="why")
@_sweep
@click.argument("trial", metavar="TRIAL", shell_complete=complete_trials)
@json_option
def why_command(sweep: str, trial: str, is_json: bool) -> None:
    """Print every decision about a trial with its reason."""
    from windlass.cli.render.sweep import trial_data
    from windlass.tune.results.why import explain

    handle = _found(sweep)
    found = handle.trial(trial)
    lines = explain(handle.history, found.id)
    if is_json:
        emit_json("windlass.trial/1", {"sweep": handle.name, **trial_data(handle, found), "story": lines})
        return
    for line in lines:
        emit_page(line)


@verb("windlass sweep stop last", "windlass sweep stop last 7", name="stop")
@_sweep
@click.argument("trial", metavar="[TRIAL]", required=False, shell_complete=complete_trials)
def stop_command(sweep: str, trial: str | None) -> None:
    """Stop a sweep with all its trials, or one trial."""
    handle = _found(sweep)
    if (row := handle.row).state == "over":
        tell(f"{handle.name} has already finished: {row.why}")
        return
    from windlass.cli.sweep.on_cluster import stop_on_cluster  # lazy: not for a help page

    if not stop_on_cluster(handle, trial or ""):
        handle.stop(trial or "", why="stopped by the user")
    what = f"trial {handle.trial(trial).id} of {handle.name}" if trial else handle.name
    tell(f"asked {what} to stop")
    if not handle.has_head:
        tell(f"  the sweep is not running; `windlass sweep resume {handle.name}` carries it out")


@verb("windlass sweep resume last", "windlass sweep resume last --errored -d", name="resume")
@_sweep
@click.option("-d", "--detach", is_flag=True, help="Return at once; the sweep continues without this command.")
@click.option("--errored", is_flag=True, help="Continue failed trials from their checkpoints.")
@click.option("--restart-errored", is_flag=True, help="Restart failed trials from the beginning.")
@json_option
def resume_command(sweep: str, detach: bool, errored: bool, restart_errored: bool, is_json: bool) -> int:
    """Continue a sweep whose head has ended, exactly where it was."""
    from windlass.cli.sweep.on_cluster import resume_on_cluster
    from windlass.cli.sweep.running import go_on
    from windlass.runs.home import Home

    if errored and restart_errored:
        raise UsageError(
            "`--errored` and `--restart-errored` are mutually exclusive", hint="give one of them", code="usage"
        )
    mode = "restart" if restart_errored else "resume" if errored else "skip"
    handle = _found(sweep)
    code = resume_on_cluster(handle, is_detached=detach, is_json=is_json, is_plain=mode == "skip")
    if code is not None:
        return code
    return go_on(handle, Home.default(), is_detached=detach, is_json=is_json, errored=mode)


@verb(
    "windlass sweep extend last --samples 200",
    "windlass sweep extend last --time 4h -d",
    "windlass sweep extend last --samples 200 --space 'lr={loguniform: [1e-4, 1e-2]}'",
    name="extend",
)
@_sweep
@click.option("--samples", type=click.IntRange(min=-1), help="New number of samples; -1 for no limit.")
@click.option("--time", "time_limit", default="", metavar="DURATION", help="New limit on the sweep's running time.")
@click.option("--trials", type=click.IntRange(min=1), help="New limit on trials.")
@click.option("--gpu-hours", type=float, help="New limit on GPU-hours.")
@click.option("--stop", multiple=True, metavar="METRIC=NUMBER", help="New stop condition of trials, METRIC=VALUE.")
@click.option("--space", multiple=True, metavar="NAME=...", help="New distribution of one parameter of the space.")
@click.option("-d", "--detach", is_flag=True, help="Return at once; the sweep continues without this command.")
@json_option
def extend_command(
    sweep: str,
    samples: int | None,
    time_limit: str,
    trials: int | None,
    gpu_hours: float | None,
    stop: tuple[str, ...],
    space: tuple[str, ...],
    detach: bool,
    is_json: bool,
) -> int:
    """Continue a sweep with more samples, new limits, a new stop condition or a new space."""
    from windlass.cli.sweep.on_cluster import resume_on_cluster
    from windlass.cli.sweep.running import extension_of, go_on
    from windlass.runs.home import Home
    from windlass.tune.sweep.extending import unchanged_by

    handle = _found(sweep)
    resume_on_cluster(handle, is_detached=detach, is_json=is_json, is_plain=False)
    more = extension_of(
        handle, samples=samples, time_limit=time_limit, trials=trials, gpu_hours=gpu_hours, stop=stop, space=space
    )
    unchanged = unchanged_by(handle.folder, more)
    if unchanged:
        tell(unchanged)
        if handle.row.state == "over":
            tell(f"  windlass sweep show {handle.name}")
            if is_json:
                from windlass.cli.render.sweep import sweep_data  # lazy: only with --json

                emit_json("windlass.sweep/1", sweep_data(handle))
            return 0
    return go_on(handle, Home.default(), is_detached=detach, is_json=is_json, more=None if unchanged else more)


@verb(
    "windlass sweep export last trials.csv",
    "windlass sweep export last curves.png",
    "windlass sweep export last report --pictures svg",
    name="export",
)
@_sweep
@click.argument("target", metavar="FILE|FOLDER", shell_complete=complete_file)
@click.option("--reports", is_flag=True, help="One row per report instead of one per trial.")
@click.option(
    "--pictures", type=click.Choice(["html", "png", "svg"]), help="Format of the pictures in a folder. [default: html]"
)
def export_command(sweep: str, target: str, reports: bool, pictures: str | None) -> None:
    """Export a sweep to a `.csv` or `.json` file, a picture (`curves.png`, `.svg`, `.html`), or everything to a folder."""
    from windlass.cli.sweep.export import export

    for path in export(_found(sweep), target, has_reports=reports, pictures=pictures or ""):
        tell(f"wrote {path}")


for _command in (
    launch_command,
    ls_command,
    show_command,
    best_command,
    why_command,
    stop_command,
    resume_command,
    extend_command,
    export_command,
):
    sweep_command.add_command(_command)
