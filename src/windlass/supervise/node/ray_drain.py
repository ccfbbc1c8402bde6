"""Part of a node's agent that runs in the user's Python: tells Ray that this node is taken away.

    <user's python> windlass.pyz ray-drain HEAD NAME DEADLINE

Ray then places nothing more on the node, moves what can move, and its autoscaler replaces the node at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["drain_command", "drain_main"]

_RETRY_S = 30.0


def drain_command(python: str, head: str, name: str, deadline_at: float) -> list[str]:
    """Return the command line.

    Args:
        name: the node's name in Ray's table.
        deadline_at: when the node is gone, in seconds since the epoch.
    """
    return [python, os.path.abspath(sys.argv[0]), "ray-drain", head, name, f"{deadline_at:.3f}"]


def drain_main(arguments: Sequence[str]) -> int:
    """Ask Ray to drain a node until it accepts; return 1 if it did not within half a minute."""
    head, name, deadline_at = arguments[0], arguments[1], float(arguments[2])
    raylet: Any = importlib.import_module("ray._raylet")
    proto: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    errors: Any = importlib.import_module("ray.exceptions")
    client = raylet.GcsClient(address=head)
    reason = proto.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    end_s = time.monotonic() + _RETRY_S
    message = "no such node"
    while time.monotonic() < end_s:
        try:
            found = [
                each
                for each in client.get_all_node_info(timeout=5).values()
                if each.node_name == name and not each.state
            ]
            for node in found:
                words = (_hex(node), reason, "the provider takes the machine back", int(deadline_at * 1000))
                is_accepted, message = client.drain_node(*words)
                if is_accepted:
                    return 0
        except errors.RpcError as error:
            message = str(error)
        time.sleep(0.5)
    sys.stderr.write(f"Ray does not drain {name}: {message}\n")
    return 1


def _hex(node: Any) -> str:
    found = node.node_id
    return str(found.hex()) if isinstance(found, bytes) else str(found)
