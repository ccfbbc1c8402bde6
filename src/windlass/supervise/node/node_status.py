"""Status of all nodes of a cluster, as its head knows them: `windlass.pyz node-status FOLDER`.

{"kind": "node", ...}       one line per node, the head first: its last status
{"kind": "machine", ...}    one line per machine that the head's autoscaler made, as its journal records it
{"kind": "tried", ...}      one line per request for machines: what was asked for, where, and what came of it
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.record.journal import read_journal
from windlass.supervise.node.spec import NodeFolder
from windlass.supervise.node.store import node_statuses

__all__ = ["node_status_main", "status_lines"]


def status_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines; raises PreconditionError if the head's own status is damaged."""
    head = NodeFolder(folder).read_status()
    lines: list[dict[str, Any]] = [] if head is None else [{"kind": "node", **asdict(head)}]
    lines += [{"kind": "node", **each} for each in node_statuses(folder)]
    machines: dict[str, dict[str, Any]] = {}
    tried: dict[str, dict[str, Any]] = {}
    journal = folder / "machines"
    for record in read_journal(journal) if journal.is_dir() else ():
        if record.kind == "cluster.node":
            machines[record.data["node"]["id"]] = dict(record.data["node"])
        elif record.kind == "cluster.intent":
            tried[record.data["token"]] = {**record.data, "asked_at": record.at, "status": "open", "reason": ""}
        elif record.kind == "cluster.resolved" and record.data["token"] in tried:
            tried[record.data["token"]].update(record.data)
    lines += [{"kind": "machine", **each} for each in machines.values()]
    return lines + [{"kind": "tried", **each} for each in tried.values()]


def node_status_main(folder: Path) -> int:
    """Print the lines."""
    for line in status_lines(folder):
        sys.stdout.write(json.dumps(line) + "\n")
    return 0
