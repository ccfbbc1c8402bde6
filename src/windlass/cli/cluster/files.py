"""Verbs of `windlass cluster` that copy files: sync, and Ray's rsync-up and rsync-down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.cluster.bringing import place_of
from windlass.cli.cluster.options import name_option, target_argument, target_of
from windlass.cli.completion.files import complete_clusters, complete_file
from windlass.cli.screen import tell
from windlass.cli.verb import verb
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.core.phrases import count

if TYPE_CHECKING:
    from windlass.backends.site_shell import SiteShell
    from windlass.cluster.home import ClusterHome

__all__ = ["COPYING"]


@verb("windlass cluster sync lab", "windlass cluster sync lab src/ data.csv", name="sync")
@click.argument("name", metavar="NAME", shell_complete=complete_clusters)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), shell_complete=complete_file)
def sync_command(name: str, paths: tuple[Path, ...]) -> None:
    """Copy files to all nodes: the `files` of the cluster again, or PATHS below the user's home.

    A path keeps its own name there. Files that are only there stay. `exclude` of the cluster's file holds for both.
    """
    from windlass.cluster.home import find_cluster  # lazy: here and below, not for a help page
    from windlass.cluster.nodes.sync import copy_files, push_path
    from windlass.runs.home import Home

    cluster = find_cluster(Home.default(), name)
    config = cluster.config()
    if not paths and not config.files:
        message = f"the file of {name} has no `files`"
        raise UsageError(message, hint=f"windlass cluster sync {name} PATH...", code="missing-argument")

    def copy(shell: SiteShell) -> None:
        if not paths:
            copy_files(config, shell)
        for path in paths:
            there = path.absolute().name
            push_path(path, there, shell, exclude=config.exclude, exclude_from=config.exclude_from)

    _on_nodes(cluster, copy, all_nodes=True)


@verb("windlass cluster rsync-up lab src/ /opt/src", "windlass cluster rsync-up lab -A", name="rsync-up")
@target_argument
@click.argument("source", required=False, type=click.Path(path_type=Path), shell_complete=complete_file)
@click.argument("there", metavar="[TARGET]", required=False)
@click.option("-A", "--all-nodes", is_flag=True, help="To all nodes. [default: only to the head]")
@name_option
def rsync_up_command(target: str, source: Path | None, there: str | None, all_nodes: bool, cluster_name: str) -> None:
    """Copy SOURCE of this machine to TARGET on the head; without them, the `files` of the cluster."""
    from windlass.cluster.home import find_cluster
    from windlass.cluster.nodes.sync import copy_files, push_path
    from windlass.runs.home import Home

    home = Home.default()
    cluster = find_cluster(home, target_of(home, target, cluster_name).home.name)
    config = cluster.config()
    if (source is None) != (there is None):
        hint = f"windlass cluster rsync-up {cluster.name} SOURCE TARGET"
        raise UsageError("`rsync-up` needs both SOURCE and TARGET, or neither", hint=hint, code="missing-argument")

    def copy(shell: SiteShell) -> None:
        if source is None or there is None:
            copy_files(config, shell)
        else:
            push_path(source, there, shell, exclude=config.exclude, exclude_from=config.exclude_from)

    _on_nodes(cluster, copy, all_nodes=all_nodes)


@verb("windlass cluster rsync-down lab results/ results/", name="rsync-down")
@target_argument
@click.argument("there", metavar="SOURCE")
@click.argument("here", metavar="TARGET", type=click.Path(path_type=Path), shell_complete=complete_file)
@name_option
def rsync_down_command(target: str, there: str, here: Path, cluster_name: str) -> None:
    """Copy SOURCE on the head to TARGET on this machine; a folder's content goes into TARGET."""
    from windlass.cluster.home import find_cluster
    from windlass.cluster.nodes.sync import fetch_path
    from windlass.runs.home import Home

    home = Home.default()
    cluster = find_cluster(home, target_of(home, target, cluster_name).home.name)
    _on_nodes(cluster, lambda shell: fetch_path(there, here, shell), all_nodes=False)


def _on_nodes(cluster: ClusterHome, do: Callable[[SiteShell], None], *, all_nodes: bool) -> None:
    """Do something with the shells of the nodes, side by side.

    Raises:
        WindlassError: the first error, after all of them were printed.
    """
    from windlass.cluster.machine import GONE
    from windlass.cluster.nodes.host import in_parallel

    config = cluster.config()
    if all_nodes and config.groups and config.place.ssh is None:
        message = (
            f"nodes that the head of {cluster.name} made cannot be reached from here; they got `files` when they began"
        )
        hint = f"windlass cluster rsync-up {cluster.name} SOURCE TARGET copies to the head"
        raise PreconditionError(message, hint=hint, code="unsupported-setting")
    state = cluster.state()
    machines = [each for each in state.living(None if all_nodes else "head") if each.state not in GONE]
    if not machines or state.wanted == "down":
        hint = f"windlass cluster up {cluster.name}"
        raise PreconditionError(f"the cluster {cluster.name} is not up", hint=hint, code="cluster-down")
    place = place_of(cluster, config, Path())
    found = in_parallel(machines, lambda machine: do(place.host(machine).shell))
    errors = [each for each in found if isinstance(each, WindlassError)]
    for error in errors[1:]:
        tell(error.message)
    if errors:
        raise errors[0]
    tell(f"copied: {count(len(machines), 'node')}")


COPYING = (sync_command, rsync_up_command, rsync_down_command)
