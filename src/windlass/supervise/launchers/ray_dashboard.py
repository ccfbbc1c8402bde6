"""Part of `ray-start`: `ray start --head --include-dashboard=false` without a process for the dashboard."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["leave_dashboard_out"]

_NO_DASHBOARD = b"255.255.255.255:1"
"""Address at which nobody can listen: Ray's processes would show the cluster's token to whoever does.

Linux refuses to connect to the broadcast address at once, so whoever looks for a dashboard only logs that it is not reached.
The port 0 of this machine is none: `requests` replaces it by 80. Source: tcp_v4_connect in net/ipv4/tcp_ipv4.c.
"""
_RPC_KEY = b"dashboard_rpc"
"""Versions such as 2.40 look for this one, too: once a second until it is there, with an error in their log each time."""


def leave_dashboard_out(address: str) -> None:
    """Make Ray's code in this process start no dashboard if none is wanted.

    Ray starts a process even then, to count usage, and waits until it has imported everything before it starts the node:
    seconds. What that process would write into Ray's table, others look for, so it is written here.

    Args:
        address: address of the head, `<address>:<port>`.
    """
    try:
        services: Any = importlib.import_module("ray._private.services")
        constants: Any = importlib.import_module("ray._private.ray_constants")
        new_client: Any = importlib.import_module("ray._raylet").GcsClient
        space, key = constants.KV_NAMESPACE_DASHBOARD, constants.DASHBOARD_ADDRESS.encode()
        start = services.start_api_server
    except (ImportError, AttributeError):
        return  # private names: other versions of Ray start theirs

    def start_api_server(is_wanted: object, *where: object, **options: object) -> object:
        if is_wanted is not False:
            return start(is_wanted, *where, **options)
        client = new_client(address=address)
        for name, value in ((key, _NO_DASHBOARD), (_RPC_KEY, _NO_DASHBOARD), (b"webui:url", b"")):
            client.internal_kv_put(name, value, True, space)
        return "", None

    services.start_api_server = start_api_server
