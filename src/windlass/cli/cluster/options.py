"""Arguments and options that several verbs of `windlass cluster` share, under Ray's names where Ray has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from windlass.cli.completion.files import beginning, complete_clusters, complete_file
from windlass.core.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from windlass.cluster.loading import ClusterTarget
    from windlass.runs.home import Home

__all__ = [
    "complete_nodes",
    "complete_targets",
    "name_option",
    "run_options",
    "target_argument",
    "target_of",
    "unused_option",
]

F = TypeVar("F", bound=Callable[..., Any])
_DETACHED = "commands never depend on the connection: `-d` returns at once, and `windlass cluster logs NAME --run RUN -f` follows"


def complete_nodes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the ids of the machines that this machine's journal knows."""
    from windlass.cluster.home import find_cluster  # lazy: only for shell completion
    from windlass.core.errors import NotFoundError
    from windlass.runs.home import Home

    try:
        cluster = find_cluster(Home.default(), str(context.params.get("name") or ""))
    except NotFoundError:
        return []
    return beginning(["head", *(machine.id for machine in cluster.state().living())], incomplete)


def complete_targets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str] | list[CompletionItem]:
    """Complete clusters or, if none matches, files."""
    return complete_clusters(context, parameter, incomplete) or complete_file(context, parameter, incomplete)


def target_argument(function: F) -> F:
    """Add FILE|NAME."""
    return click.argument("target", metavar="FILE|NAME", shell_complete=complete_targets)(function)


def name_option(function: F) -> F:
    """Add Ray's `--cluster-name`."""
    return click.option(
        "-n",
        "--cluster-name",
        default="",
        metavar="NAME",
        shell_complete=complete_clusters,
        help="Name of the cluster, instead of the file's.",
    )(function)


def unused_option(name: str, reason: str) -> Callable[[F], F]:
    """Add an option of Ray that cannot be honoured; giving it is an error with the reason."""

    def refuse(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            _refuse(name, reason)

    return click.option(name, is_flag=True, expose_value=False, callback=refuse, help=f"Refused: {reason}.")


def _refuse(name: str, reason: str) -> NoReturn:
    raise UsageError(f"`{name}` cannot be honoured: {reason}", hint="leave it out", code="unsupported-setting")


def run_options(function: F) -> F:
    """Add the options of `submit` and `exec`."""
    options = (
        click.option("--start", is_flag=True, help="Bring the cluster up first, if it is not."),
        click.option("--stop", is_flag=True, help="Bring the cluster down afterwards, whatever the result."),
        click.option("-d", "--detach", is_flag=True, help="Print the run's name and return; the command continues."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask before machines are made."),
        click.option(
            "-p",
            "--port-forward",
            multiple=True,
            type=click.IntRange(min=1, max=65535),
            metavar="PORT",
            help="Forward a port of this machine to the head's meanwhile.",
        ),
        name_option,
        unused_option("--screen", _DETACHED),
        unused_option("--tmux", _DETACHED),
        click.option("--no-config-cache", is_flag=True, expose_value=False, help="Accepted: none is kept."),
        click.option("--disable-usage-stats", is_flag=True, expose_value=False, help="Accepted: none are sent."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def target_of(home: Home, word: str, cluster_name: str = "") -> ClusterTarget:
    """Return what FILE or NAME stands for."""
    from windlass.cluster.loading import find_target  # lazy: not for a help page

    return find_target(home, word, name=cluster_name)
