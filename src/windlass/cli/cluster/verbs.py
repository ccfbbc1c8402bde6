"""Verbs of `windlass cluster` that use a cluster which is up: submit, exec, attach, logs, and Ray's small ones."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from windlass.cli.cluster.bringing import cluster_line
from windlass.cli.cluster.options import run_options, target_argument, target_of
from windlass.cli.cluster.running import RunFlags, run_on
from windlass.cli.verb import verb
from windlass.core.errors import NotFoundError

__all__ = ["USING"]


@verb(
    "windlass cluster submit cluster.yaml --start --stop train.py -- --lr 0.1",
    "windlass cluster submit lab -d train.py",
    name="submit",
)
@target_argument
@run_options
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--args", "more", default="", metavar="TEXT", help="Arguments of the script as one word; see also `--`.")
def submit_command(
    target: str,
    start: bool,
    stop: bool,
    detach: bool,
    yes: bool,
    port_forward: tuple[int, ...],
    cluster_name: str,
    script: Path,
    arguments: tuple[str, ...],
    more: str,
) -> int:
    """Copy a script to the head's home and run it with the cluster's Python.

    Prints the script's output and exits with its exit code. Ctrl-C ends the script. If this machine or the connection dies
    the script continues: `windlass cluster logs NAME`.
    """
    from windlass.cluster.nodes.commands import ClusterNode, new_run_name  # lazy: here and below, not for a help page
    from windlass.runs.home import Home
    from windlass.supervise.node.commands import PYTHON, NodeCommand

    if not script.is_file():
        raise NotFoundError(f"no such file: {script}", hint="name a Python script", code="file-not-found")
    home, content = Home.default(), script.read_bytes()
    flags = RunFlags(is_start=start, is_stop=stop, is_detached=detach, yes=yes, ports=port_forward)
    words = (*arguments, *shlex.split(more))

    def begin(head: ClusterNode) -> str:
        run = new_run_name(script.name)
        there = head.store_script(script.name, content)
        head.start(run, NodeCommand((PYTHON, there, *words)))
        return run

    return run_on(home, target_of(home, target, cluster_name), flags, begin, line=cluster_line("submit", target))


@verb("windlass cluster exec lab 'nvidia-smi'", "windlass cluster exec lab -d 'python serve.py'", name="exec")
@target_argument
@run_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    target: str,
    start: bool,
    stop: bool,
    detach: bool,
    yes: bool,
    port_forward: tuple[int, ...],
    cluster_name: str,
    command: tuple[str, ...],
) -> int:
    """Run a shell command on the head, in the user's home; bash parses it.

    Output, exit code and Ctrl-C as with `submit`. RAY_ADDRESS is set.
    """
    from windlass.cluster.nodes.commands import ClusterNode, new_run_name, shell_command
    from windlass.runs.home import Home

    home = Home.default()
    flags = RunFlags(is_start=start, is_stop=stop, is_detached=detach, yes=yes, ports=port_forward)
    line = command[0] if len(command) == 1 else shlex.join(command)

    def begin(head: ClusterNode) -> str:
        run = new_run_name(line.split()[0] if line.split() else "exec")
        head.start(run, shell_command(line))
        return run

    return run_on(home, target_of(home, target, cluster_name), flags, begin, line=cluster_line("exec", target))


USING = (submit_command, exec_command)
