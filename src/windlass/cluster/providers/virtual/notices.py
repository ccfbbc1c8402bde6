"""Notices for the virtual machine that this runs on, from its server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from windlass.cluster.machine import Notice
from windlass.cluster.providers.protocol import UncertainError
from windlass.supervise.node.notices import MetadataError
from windlass.supervise.node.notices import fetch_notices as fetch_node_notices

__all__ = ["fetch_notices"]


def fetch_notices() -> Sequence[Notice]:
    """Return the announcements for this machine.

    Raises:
        UncertainError: this is no virtual machine.
    """
    try:
        found = fetch_node_notices("virtual")
    except MetadataError as error:
        raise UncertainError(str(error)) from error
    return [Notice(at=each.at, kind=cast(Literal["terminate", "stop", "rebalance"], each.kind)) for each in found]
