"""Sweeps on a cluster, as the command line launches, follows, reads and stops them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli.cluster.running import Printer, head_of
from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.screen import emit, emit_json, tell
from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.sweep.cluster.record import SweepPlace, is_on_cluster

if TYPE_CHECKING:
    from windlass.cluster.home import ClusterHome
    from windlass.cluster.nodes.commands import ClusterNode
    from windlass.launcher.prepare import Options
    from windlass.runs.home import Home
    from windlass.tune.sweep.handle import SweepHandle

__all__ = ["follow_on_cluster", "launch_on_cluster", "refreshed", "resume_on_cluster", "stop_on_cluster"]


def launch_on_cluster(
    path: Path,
    overrides: Sequence[str],
    options: Options,
    cluster: ClusterHome,
    home: Home,
    *,
    name: str,
    is_detached: bool,
    is_json: bool,
) -> int:
    """Start a sweep on a cluster, follow it and return its exit code."""
    from windlass.tune.sweep.cluster.launching import (  # lazy: here and below, not for a help page
        check_python,
        create_sweep,
        prepare_cluster_sweep,
        send,
        start_head,
    )
    from windlass.tune.sweep.handle import SweepHandle

    made = prepare_cluster_sweep(path, overrides, options, name=name, cluster=cluster.name, home=home)
    head = head_of(home, cluster)
    check_python(head)
    handle = SweepHandle(create_sweep(made))
    start_head(handle.folder, head, send(made, head))
    return _go_on(handle, head, is_detached=is_detached, is_json=is_json)


def _go_on(handle: SweepHandle, head: ClusterNode, *, is_detached: bool, is_json: bool) -> int:
    if is_detached:
        where = f"cluster {head.home.name}"
        tell(f"{handle.name}  head: {where}")
        if is_json:
            emit_json("windlass.sweep/1", {"name": handle.name, "folder": str(handle.folder), "head": where})
        else:
            emit(handle.name)
            tell(f"  windlass sweep show {handle.name} --follow | windlass sweep stop {handle.name}")
        return 0
    tell(f"{handle.name}  {handle.folder}")
    code = follow_on_cluster(handle, head)
    if is_json:
        from windlass.cli.render.sweep import sweep_data  # lazy: only with --json

        emit_json("windlass.sweep/1", sweep_data(handle))
    return code


class _Told(Printer):
    """Prints what the sweep's head prints to standard error, as a head on this machine does."""

    def output(self, piece: bytes) -> None:
        """Print to standard error."""
        self.errors(piece)


def follow_on_cluster(handle: SweepHandle, head: ClusterNode) -> int:
    """Print what the sweep's head prints, to its end, and return its exit code; Ctrl-C only ends the following."""
    from windlass.tune.sweep.cluster.reading import fetch_sweep

    place = SweepPlace.read(handle.folder)
    try:
        code = head.follow(place.run, _Told()) or 0
    except KeyboardInterrupt:
        tell(f"{handle.name} continues on {place.cluster}: windlass sweep show {handle.name} --follow")
        tell(f"  windlass sweep stop {handle.name}")
        return EXIT_INTERRUPTED
    fetch_sweep(handle.folder, head)
    row = handle.row if handle.has_journal else None
    if row is not None and row.state == "over":
        tell(f"{handle.name} finished: {row.why}")
        tell(f"  windlass sweep best {handle.name} | windlass sweep why {handle.name} TRIAL")
    elif row is not None:
        tell(f"{handle.name} interrupted: windlass sweep resume {shlex.quote(handle.name)}")
    return code


def _head(name: str) -> ClusterNode:
    from windlass.cluster.home import find_cluster
    from windlass.runs.home import Home

    home = Home.default()
    return head_of(home, find_cluster(home, name))


def refreshed(handle: SweepHandle) -> SweepHandle:
    """Fetch what is new of a sweep that runs on a cluster; other sweeps are as they are."""
    if is_on_cluster(handle.folder):
        from windlass.tune.sweep.cluster.reading import refresh

        refresh(handle.folder, _head, lambda text: tell(f"note: {text}"))
    return handle


def show_follow(handle: SweepHandle) -> int | None:
    """Follow a sweep that runs on a cluster; None if it does not run on one, or does not run."""
    if not is_on_cluster(handle.folder) or not handle.has_head:
        return None
    return follow_on_cluster(handle, _head(SweepPlace.read(handle.folder).cluster))


def stop_on_cluster(handle: SweepHandle, trial: str) -> bool:
    """Ask the head of a sweep on a cluster to stop it, or a trial; return whether the sweep is on a cluster."""
    if not is_on_cluster(handle.folder):
        return False
    from windlass.tune.sweep.cluster.reading import send_request

    facts = {"trial": handle.trial(trial).id} if trial else {}
    head = _head(SweepPlace.read(handle.folder).cluster)
    send_request(handle.folder, head, "stop-trial" if trial else "stop-all", {"why": "stopped by the user", **facts})
    return True


def resume_on_cluster(handle: SweepHandle, *, is_detached: bool, is_json: bool, is_plain: bool) -> int | None:
    """Continue a sweep on its cluster; None if it is not on one.

    Raises:
        UsageError: it would be changed, which works only where its head runs on this machine.
        PreconditionError: its head runs, or its cluster has ended.
    """
    if not is_on_cluster(handle.folder):
        return None
    from windlass.tune.sweep.cluster.launching import start_head

    place = SweepPlace.read(handle.folder)
    if not is_plain:
        message = f"{handle.name} runs on the cluster {place.cluster}, where a sweep can only be resumed as it is"
        raise UsageError(message, hint=f"windlass sweep resume {handle.name}", code="sweep-unsupported")
    head = _head(place.cluster)
    if head.home.id != place.id:
        message = f"the cluster {place.cluster} of {handle.name} has ended, and its checkpoints with it"
        raise PreconditionError(message, hint="launch the sweep anew", code="cluster-down")
    if place.is_running:
        hint = f"windlass sweep show {handle.name} --follow"
        raise PreconditionError(f"sweep {handle.name} is already running", hint=hint, code="in-use")
    start_head(handle.folder, head, place.folder)
    return _go_on(handle, head, is_detached=is_detached, is_json=is_json)
