"""Commands on a cluster's head, followed to their end: output, exit code, Ctrl-C, and the cluster's end afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from windlass.cli import problems
from windlass.cli.cluster.bringing import archive_of, bring_target_down, bring_target_up, cluster_line, place_of
from windlass.cli.cluster.sessions import forwarded
from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.screen import emit, paint, tell, write_raw
from windlass.core.dataclass import dataclass
from windlass.core.errors import UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.cluster.home import ClusterHome
    from windlass.cluster.loading import ClusterTarget
    from windlass.cluster.nodes.commands import ClusterNode
    from windlass.runs.home import Home

__all__ = ["Printer", "RunFlags", "follow_printed", "head_of", "run_on"]


class Printer:
    """Prints a command's output to the same streams as the command."""

    def output(self, piece: bytes) -> None:
        """Print to standard output."""
        if piece:
            write_raw(piece)

    def errors(self, piece: bytes) -> None:
        """Print to standard error."""
        if piece:
            sys.stdout.flush()
            sys.stderr.flush()
            buffer = getattr(sys.stderr, "buffer", None)
            if buffer is None:
                sys.stderr.write(piece.decode(errors="replace"))
            else:
                buffer.write(piece)
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Print a note about the connection."""
        tell(paint(f"-- {text}", "dim", stream=sys.stderr))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Options of `submit` and `exec`."""

    is_start: bool = False
    is_stop: bool = False
    is_detached: bool = False
    yes: bool = False
    ports: tuple[int, ...] = ()

    def check(self) -> None:
        """Refuse options that cannot be honoured together."""
        if self.is_detached and self.is_stop:
            message = "`--detach` and `--stop` are mutually exclusive: nothing would be left to bring the cluster down"
            hint = "leave out one of them; `ttl` in the file ends the cluster without this machine"
            raise UsageError(message, hint=hint, code="conflicting-options")
        if self.is_detached and self.ports:
            message = "`--detach` and `--port-forward` are mutually exclusive: a port is forwarded by this command"
            hint = "leave out one of them; `windlass cluster attach NAME -p PORT` forwards a port too"
            raise UsageError(message, hint=hint, code="conflicting-options")


def head_of(home: Home, cluster: ClusterHome) -> ClusterNode:
    """Return the head of a cluster that is up."""
    from windlass.cluster.nodes.commands import find_head  # lazy: not for a help page

    archive = archive_of(home)
    return find_head(cluster, place_of(cluster, cluster.config(), archive), archive)


def run_on(
    home: Home, target: ClusterTarget, flags: RunFlags, begin: Callable[[ClusterNode], str], *, line: str
) -> int:
    """Run a command on a cluster's head; return the command's exit code.

    Args:
        begin: starts the command and returns the name of its run.
        line: the command line without `--yes`, for hints.
    """
    flags.check()
    is_ours_to_stop = flags.is_stop
    code = 1
    try:
        if flags.is_start:
            bring_target_up(home, target, target.config(), yes=flags.yes, line=line, stays=not flags.is_stop)
        code = _run(head_of(home, target.home), flags, begin)
    except WindlassError as error:
        from windlass.cluster.up import NOTHING_DONE  # lazy: not for a help page

        is_ours_to_stop = flags.is_stop and error.code not in NOTHING_DONE
        raise
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
        if not flags.is_stop:
            raise
    finally:
        is_down = not is_ours_to_stop or not target.exists or _stop(home, target.home)
    return code if is_down else code or 1


def _stop(home: Home, cluster: ClusterHome) -> bool:
    """Bring the cluster down; return whether it is, after the reason was printed."""
    try:
        bring_target_down(home, cluster)
    except WindlassError as error:
        problems.show(error)
        tell(f"{cluster.name} is not down: {cluster_line('down', cluster.name)}")
        return False
    return True


def _run(head: ClusterNode, flags: RunFlags, begin: Callable[[ClusterNode], str]) -> int:
    run = begin(head)
    if flags.is_detached:
        emit(run)
        name = head.home.name
        tell(f"{run} runs on {name}: windlass cluster logs {name} --run {run} -f")
        return 0
    with forwarded(head, flags.ports):
        return follow_printed(head, run, ends_on_interrupt=True)


def follow_printed(head: ClusterNode, run: str, *, ends_on_interrupt: bool) -> int:
    """Print a run's output to its end; return its exit code. Ctrl-C ends the run, or only the following."""
    printer, at = Printer(), [0, 0]
    try:
        return head.follow(run, printer, at=at) or 0
    except KeyboardInterrupt:
        name = head.home.name
        if not ends_on_interrupt:
            tell(f"{run} continues: windlass cluster logs {name} --run {run} -f")
            return EXIT_INTERRUPTED
        tell(f"ending {run}")
        head.kill(run)
        head.follow(run, printer, at=at, follows=False)
        return EXIT_INTERRUPTED
