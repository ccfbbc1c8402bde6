"""Verbs of `windlass cluster` that look at a cluster which is up: logs, addresses, scaling events, the dashboard."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from windlass.cli.cluster.bringing import archive_of, place_of
from windlass.cli.cluster.options import (
    complete_nodes,
    name_option,
    target_argument,
    target_of,
    unused_option,
)
from windlass.cli.cluster.running import Printer, follow_printed
from windlass.cli.cluster.sessions import terminal_session
from windlass.cli.completion.files import complete_clusters
from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.screen import emit, tell
from windlass.cli.verb import verb
from windlass.core.errors import PreconditionError, UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.cluster.nodes.commands import ClusterNode
    from windlass.cluster.view import ClusterView

__all__ = ["LOOKING"]

_PAUSE_S = 0.5


def _node(name: str, word: str) -> ClusterNode:
    from windlass.cluster.home import find_cluster
    from windlass.cluster.nodes.commands import find_node  # lazy: here and below, not for a help page
    from windlass.runs.home import Home

    home = Home.default()
    cluster, archive = find_cluster(home, name), archive_of(home)
    return find_node(cluster, place_of(cluster, cluster.config(), archive), archive, word)


@verb(
    "windlass cluster logs lab",
    "windlass cluster logs lab --run train-7hq2mx4p -f",
    "windlass cluster logs lab --node gpu2",
    name="logs",
)
@click.argument("name", metavar="NAME", shell_complete=complete_clusters)
@click.option(
    "--node",
    default="",
    metavar="ID",
    shell_complete=complete_nodes,
    help="Logs of a node: its agent, set-up and Ray; `head` is the head.",
)
@click.option("--run", default="", metavar="RUN", help="Output of a command. [default: the newest]")
@click.option("-f", "--follow", is_flag=True, help="Follow to the end; Ctrl-C detaches.")
def logs_command(name: str, node: str, run: str, follow: bool) -> int:
    """Print the output of a command on the head, or the logs of a node.

    Standard output and standard error of a command are printed to the same streams. With -f the exit code is the command's.
    """
    if node and run:
        message = "`--node` and `--run` are mutually exclusive: commands run on the head"
        raise UsageError(message, hint="give one of them", code="conflicting-options")
    if node:
        return _print_node_logs(name, node, follow)
    found = _node(name, "head")
    runs = found.runs()
    if not run and not runs:
        tell(f"no command ran on {name} yet; these are the logs of its head")
        return _print_logs(found, follow)
    chosen = run or runs[-1]
    if follow:
        return follow_printed(found, chosen, ends_on_interrupt=False)
    if found.follow(chosen, Printer(), follows=False) is None:
        tell(f"{chosen} is running: windlass cluster logs {name} --run {chosen} -f")
    return 0


def _print_node_logs(name: str, word: str, follow: bool) -> int:
    """Print the logs of a node: its own or, if it does not respond any more, those that were kept when it failed."""
    from windlass.cluster.home import find_cluster
    from windlass.cluster.nodes.kept_logs import find_kept_logs
    from windlass.runs.home import Home

    try:
        node = _node(name, word)
    except WindlassError as error:
        kept = find_kept_logs(find_cluster(Home.default(), name), word)
        if not kept:
            raise
        tell(f"{error.message}; these are the logs that were fetched when the node failed")
        for path in kept:
            tell(f"-- {path.name}")
            Printer().output(path.read_bytes())
        return 0
    return _print_logs(node, follow)


def _print_logs(node: ClusterNode, follow: bool) -> int:
    """Print the logs of a node one after the other or, with `follow`, as they grow."""
    from windlass.cluster.nodes.kept_logs import NODE_LOGS

    printer, at = Printer(), dict.fromkeys(NODE_LOGS, 0)
    shown = ""
    try:
        while True:
            has_more = False
            for name in NODE_LOGS:
                piece = node.read_log(name, at[name], printer)
                if piece and shown != name:
                    tell(f"-- {name}.log")
                    shown = name
                printer.output(piece)
                at[name] += len(piece)
                has_more = has_more or bool(piece)
            if not has_more and not follow:
                return 0
            if not has_more:
                time.sleep(_PAUSE_S)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _view(target: str, cluster_name: str) -> ClusterView:
    from pathlib import Path

    from windlass.cluster.home import find_cluster
    from windlass.cluster.view import view_of
    from windlass.runs.home import Home

    home = Home.default()
    cluster = find_cluster(home, target_of(home, target, cluster_name).home.name)
    view = view_of(cluster, place_of(cluster, cluster.config(), Path()))
    if not view.nodes:
        message = f"the cluster {cluster.name} is not up"
        raise PreconditionError(message, hint=f"windlass cluster up {cluster.name}", code="cluster-down")
    return view


@verb("windlass cluster get-head-ip lab", name="get-head-ip")
@target_argument
@name_option
def head_ip_command(target: str, cluster_name: str) -> None:
    """Print the address of the head, as Ray's `get-head-ip` does."""
    view = _view(target, cluster_name)
    emit(view.address.rpartition(":")[0] or view.nodes[0].machine.address)


@verb("windlass cluster get-worker-ips lab", name="get-worker-ips")
@target_argument
@name_option
def worker_ips_command(target: str, cluster_name: str) -> None:
    """Print the addresses of all nodes but the head, one a line."""
    for node in _view(target, cluster_name).nodes:
        if node.machine.group != "head":
            emit((node.status.address if node.status is not None else "") or node.machine.address)


@verb("windlass cluster monitor lab", name="monitor")
@target_argument
@name_option
@click.option("--lines", type=click.IntRange(min=0), default=100, show_default=True, help="Lines of the past to print.")
def monitor_command(target: str, cluster_name: str, lines: int) -> int:
    """Follow what Ray's autoscaler on the head decides; Ctrl-C ends it."""
    view = _view(target, cluster_name)
    if view.row.kind == "ssh":
        message = f"{view.row.name} has no autoscaler: its hosts exist, and all of them are used"
        raise PreconditionError(message, hint=f"windlass cluster show {view.row.name}", code="no-autoscaler")
    head, printer = _node(view.row.name, "head"), Printer()
    past = piece = head.read_log("monitor", 0, printer)
    while piece:
        piece = head.read_log("monitor", len(past), printer)
        past += piece
    printer.output(b"".join(past.splitlines(keepends=True)[-lines:]) if lines else b"")
    at = len(past)
    try:
        while True:
            piece = head.read_log("monitor", at, printer, wait_s=10.0)
            printer.output(piece)
            at += len(piece)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@verb("windlass cluster dashboard lab", name="dashboard")
@target_argument
@name_option
@click.option("-p", "--port", type=click.IntRange(min=1, max=65535), default=8265, help="Port of this machine.")
@click.option("--remote-port", type=click.IntRange(min=1, max=65535), default=8265, help="Port of the dashboard.")
def dashboard_command(target: str, cluster_name: str, port: int, remote_port: int) -> None:
    """Forward a port to Ray's dashboard. Refused today: Ray's dashboard does not run on clusters of windlass."""
    view = _view(target, cluster_name)
    message = f"Ray's dashboard does not run on {view.row.name}: Ray is started without it, which saves ten processes"
    hint = f"windlass cluster show {view.row.name}"
    raise PreconditionError(message, hint=hint, code="no-dashboard")


@verb("windlass cluster attach lab", "windlass cluster attach lab --tmux -p 8888", name="attach")
@target_argument
@name_option
@click.option("--screen", is_flag=True, help="Enter a session of `screen` on the head, which must have it.")
@click.option("--tmux", is_flag=True, help="Enter a session of `tmux` on the head, which must have it.")
@click.option("-N", "--new", is_flag=True, help="Begin another session of `screen` or `tmux`.")
@click.option(
    "-p",
    "--port-forward",
    multiple=True,
    type=click.IntRange(min=1, max=65535),
    metavar="PORT",
    help="Forward a port of this machine to the head's meanwhile.",
)
@unused_option("--start", "`windlass cluster up FILE` brings it up")
def attach_command(
    target: str, cluster_name: str, screen: bool, tmux: bool, new: bool, port_forward: tuple[int, ...]
) -> int:
    """Open a shell on the head, with RAY_ADDRESS set; needs a terminal.

    The shell ends with the cluster.
    """
    from windlass.cluster.home import find_cluster
    from windlass.cluster.nodes.commands import find_head
    from windlass.runs.home import Home

    if screen and tmux:
        raise UsageError("`--screen` and `--tmux` are mutually exclusive", hint="give one of them", code="usage")
    if new and not (screen or tmux):
        raise UsageError("`--new` needs `--screen` or `--tmux`", hint="add one of them", code="usage")
    home = Home.default()
    cluster, archive = find_cluster(home, target_of(home, target, cluster_name).home.name), archive_of(home)
    head = find_head(cluster, place_of(cluster, cluster.config(), archive), archive)
    program: tuple[str, ...] = ()
    if screen:
        program = ("screen",) if new else ("screen", "-xRR")
    if tmux:
        program = ("tmux", "new-session") if new else ("tmux", "new-session", "-A", "-s", "windlass")
    return terminal_session(head, program, port_forward)


LOOKING = (
    attach_command,
    logs_command,
    head_ip_command,
    worker_ips_command,
    monitor_command,
    dashboard_command,
)
