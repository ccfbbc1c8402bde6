"""Reading of a sweep on a cluster from this machine: its journal is fetched through the head, requests are sent to it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.cluster.nodes.commands import ClusterNode
from windlass.core.errors import PreconditionError, WindlassError
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.cluster.record import SweepPlace

__all__ = ["fetch_sweep", "refresh", "send_request"]

_END = 1 << 40
"""Position behind every output: only whether the command has ended is asked."""

_PIECE = """[ -f "$1" ] || exit 0; tail -c "+$(( $2 + 1 ))" "$1\""""


class _Silent:
    """Reader that prints nothing."""

    def output(self, piece: bytes) -> None:
        """Ignore standard output."""

    def errors(self, piece: bytes) -> None:
        """Ignore standard error."""

    def note(self, text: str) -> None:
        """Ignore what happens to the connection."""


def refresh(folder: Path, find: Callable[[str], ClusterNode], note: Callable[[str], None]) -> None:
    """Fetch what is new of a sweep; a cluster that does not respond is a note, and what is here is shown.

    Args:
        find: returns the head of a cluster by its name.
    """
    place = SweepPlace.read(folder)
    if not place.is_running and SweepFolder(folder).head_journal.exists():
        return
    try:
        head = find(place.cluster)
        if head.home.id != place.id:
            message = f"the cluster {place.cluster} of this sweep has ended"
            raise PreconditionError(message, hint="what follows is its last known state", code="cluster-down")
        fetch_sweep(folder, head)
    except WindlassError as error:
        note(f"{error.message}; this is the last known state")
        if error.code in ("cluster-down", "not-found"):
            replace(place, is_running=False).write(folder)


def fetch_sweep(folder: Path, head: ClusterNode) -> SweepPlace:
    """Fetch the new part of a sweep's journal, and whether its head runs; return where it runs. Idempotent."""
    place = SweepPlace.read(folder)
    silent = _Silent()
    try:
        is_running = head.follow(place.run, silent, at=[_END, _END], follows=False, patience_s=0.0) is None
    except WindlassError as error:
        if error.code != "command-lost":
            raise
        is_running = False
    journal = SweepFolder(folder).head_journal
    journal.parent.mkdir(parents=True, exist_ok=True)
    size = journal.stat().st_size if journal.exists() else 0
    argv = ["sh", "-c", _PIECE, "sh", f"{place.folder}/journal/{journal.name}", str(size)]
    answer = head.host.shell.run_bytes(argv, timeout_s=120.0)
    if answer.code:
        message = f"{head.host.shell.name}: {answer.err.strip()[-200:]}"
        raise PreconditionError(message, code="invalid-reply")
    whole = answer.out[: answer.out.rfind(b"\n") + 1]  # a record that is being written comes with the next call
    with journal.open("ab") as file:
        file.write(whole)
    found = replace(place, is_running=is_running)
    if found != place:
        found.write(folder)
    return found


def send_request(folder: Path, head: ClusterNode, what: str, facts: Mapping[str, Any]) -> None:
    """Send a request to the sweep's head, as `controller.requests.ask` does on one machine."""
    place = SweepPlace.read(folder)
    name = f"{time.time_ns():020d}-{os.getpid()}.json"
    head.host.store_file(f"{place.folder}/control", name, json.dumps({"what": what, **facts}).encode())
