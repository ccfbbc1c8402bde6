"""`windlass cluster`: machines that run Ray, brought up, used and ended."""

from __future__ import annotations

import shlex

import click

from windlass.cli.cluster.bringing import bring_target_down, bring_target_up, cluster_line, place_of, with_counts
from windlass.cli.cluster.files import COPYING
from windlass.cli.cluster.looking import LOOKING
from windlass.cli.cluster.options import (
    name_option,
    target_argument,
    target_of,
    unused_option,
)
from windlass.cli.cluster.verbs import USING
from windlass.cli.completion.files import complete_clusters, complete_file
from windlass.cli.screen import emit, emit_json, emit_page, paint, tell
from windlass.cli.verb import Family, examples_page, json_option, verb
from windlass.core.errors import PreconditionError, UnreachableError, UsageError

__all__ = ["cluster_command"]


@click.group(
    cls=Family,
    name="cluster",
    epilog=examples_page(
        "windlass cluster up cluster.yaml",
        "windlass cluster submit cluster.yaml --start --stop train.py -- --lr 0.1",
        "windlass cluster down lab",
    ),
)
def cluster_command() -> None:
    """Bring machines up that run Ray, use them, and end them.

    FILE is a cluster's file, ours or Ray's own; NAME a cluster of `windlass cluster ls`.
    """


@verb(
    "windlass cluster up cluster.yaml",
    "windlass cluster up cluster.yaml --yes --max-workers 8",
    name="up",
)
@target_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--min-workers", type=click.IntRange(min=0), help="Least nodes of the only group, instead of the file's.")
@click.option("--max-workers", type=click.IntRange(min=0), help="Most nodes of the only group, instead of the file's.")
@name_option
@click.option("--no-restart", is_flag=True, help="Accepted: Ray is never restarted on nodes that are up.")
@unused_option(
    "--restart-only", "running nodes are never set up again, and Ray is not restarted; `down` and `up` do both"
)
@json_option
def up_command(
    target: str,
    yes: bool,
    min_workers: int | None,
    max_workers: int | None,
    cluster_name: str,
    no_restart: bool,
    is_json: bool,
) -> None:
    """Bring a cluster up: print the plan and its price, ask, make the machines, start Ray.

    Returns when Ray runs on all nodes. A second `up` changes nothing, or starts what is missing. Nodes that are ready stay
    when others fail; the error names those.
    """
    from windlass.runs.home import Home  # lazy: here and below, not for a help page

    home = Home.default()
    found = target_of(home, target, cluster_name)
    config = with_counts(found.config(), min_workers, max_workers)
    cluster = bring_target_up(home, found, config, yes=yes, line=cluster_line("up", target))
    if is_json:
        _show(cluster.name, is_json=True)
        return
    tell(f"{cluster.name} is up: windlass cluster show {cluster.name}")


@verb("windlass cluster down lab", "windlass cluster down cluster.yaml", name="down")
@target_argument
@click.option("-y", "--yes", is_flag=True, help="Accepted: it does not ask.")
@name_option
@unused_option("--workers-only", "a cluster ends as a whole; lower `min` of a group to have fewer workers")
@unused_option("--keep-min-workers", "a cluster ends as a whole; lower `max` of a group to have fewer workers")
def down_command(target: str, yes: bool, cluster_name: str) -> None:
    """End a cluster: all its machines or, on hosts that exist, all its processes.

    Returns when the provider lists nothing of it. It may be repeated.
    """
    from windlass.runs.home import Home

    home = Home.default()
    found = target_of(home, target, cluster_name)
    if not found.exists:
        tell(f"{found.home.name} was never up")
        return
    bring_target_down(home, found.home)


@verb("windlass cluster ls", "windlass cluster ls --json", name="ls")
@json_option
def ls_command(is_json: bool) -> None:
    """List clusters. Reads only files of this machine."""
    from windlass.cli.render.cluster import list_lines, row_data
    from windlass.cluster.home import list_clusters
    from windlass.cluster.view import row_of
    from windlass.runs.home import Home

    rows = [row_of(each) for each in list_clusters(Home.default())]
    if is_json:
        emit_json("windlass.clusters/1", {"clusters": [row_data(row) for row in rows]})
        return
    if not rows:
        tell("no clusters yet; bring one up with `windlass cluster up FILE`")
        return
    lines = list_lines(rows)
    emit_page(paint(lines[0], "bold"))
    for line in lines[1:]:
        emit_page(line)


_name = click.argument("name", metavar="NAME", shell_complete=complete_clusters)


@verb("windlass cluster show lab", "windlass cluster show lab --json", name="show")
@_name
@json_option
def show_command(name: str, is_json: bool) -> None:
    """Show a cluster: nodes, states, Ray's address, what could not be made. Asks its hosts, and changes nothing."""
    _show(name, is_json=is_json)


def _show(name: str, *, is_json: bool) -> None:
    from pathlib import Path

    from windlass.cli.render.cluster import view_data, view_lines
    from windlass.cluster.home import find_cluster
    from windlass.cluster.view import view_of
    from windlass.runs.home import Home

    cluster = find_cluster(Home.default(), name)
    view = view_of(cluster, place_of(cluster, cluster.config(), Path()))  # looking installs nothing on the hosts
    if is_json:
        emit_json("windlass.cluster/1", view_data(view))
        return
    for line in view_lines(view):
        emit_page(line)


@verb("windlass cluster reconcile lab", "windlass cluster reconcile lab --yes", name="reconcile")
@_name
@click.option("-y", "--yes", is_flag=True, help="End them. [default: only list them]")
@json_option
def reconcile_command(name: str, yes: bool, is_json: bool) -> int:
    """List the machines of a cluster that should not exist, and end them with --yes.

    Exits with 8 if there are some that were not ended, and with 6 if hosts do not respond.
    """
    from dataclasses import asdict

    from windlass.cli.cluster.bringing import archive_of
    from windlass.cluster.home import find_cluster
    from windlass.cluster.reconcile import end_strays, find_strays, unseen_hosts
    from windlass.runs.home import Home

    home = Home.default()
    cluster = find_cluster(home, name)
    place = place_of(cluster, cluster.config(), archive_of(home))
    unseen, strays = unseen_hosts(cluster, place), find_strays(cluster, place)
    if yes and strays:
        end_strays(cluster, place, strays)
    if is_json:
        emit_json("windlass.cluster-strays/1", {"ended": yes, "strays": [asdict(stray) for stray in strays]})
    for stray in () if is_json else strays:
        emit(f"{'ended' if yes else 'stray'}  {stray.machine.id}  {stray.machine.group}  {stray.why}")
    for problem in unseen:
        tell(f"not looked at: {problem.message}")
    if not strays and not unseen:
        tell(f"{name} has no machine that should not exist")
    elif strays and not yes:
        tell(f"windlass cluster reconcile {name} --yes ends them")
    if strays and not yes:
        return PreconditionError.exit_code
    return UnreachableError.exit_code if unseen else 0


@verb(
    "windlass cluster import ray.yaml > cluster.yaml",
    "windlass cluster import sky.yaml --experiment > experiment.yaml",
    name="import",
)
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@click.option("--experiment", "is_experiment", is_flag=True, help="Print the experiment of SkyPilot's task instead.")
def import_command(file: str, is_experiment: bool) -> None:
    """Print a cluster's file of Ray, or a task file of SkyPilot, as ours; differences are noted on standard error.

    Keys that cannot be honoured are errors with their line and the reason.
    """
    from pathlib import Path

    from windlass.cluster.imports import import_file

    found = import_file(Path(file))
    if is_experiment and found.experiment_yaml is None:
        raise UsageError(f"{file} has no experiment: it describes machines alone", hint="leave `--experiment` out")
    for note in found.notes:
        tell(f"note: {note}")
    if found.experiment_yaml is not None and not is_experiment:
        tell(f"windlass cluster import {shlex.quote(file)} --experiment prints the experiment")
    emit(((found.experiment_yaml or "") if is_experiment else found.cluster_yaml).rstrip("\n"))


for _command in (
    up_command,
    down_command,
    ls_command,
    show_command,
    reconcile_command,
    import_command,
    *USING,
    *LOOKING,
    *COPYING,
):
    cluster_command.add_command(_command)
