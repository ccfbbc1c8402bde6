"""Notices for the instance that this runs on, from its metadata service (version 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from windlass.cluster.machine import Notice
from windlass.cluster.providers.protocol import UncertainError
from windlass.supervise.node.notices import MetadataError
from windlass.supervise.node.notices import fetch_notices as fetch_node_notices

__all__ = ["fetch_notices"]


def fetch_notices() -> Sequence[Notice]:
    """Return the announcements for this instance; needs no credentials, and no boto3.

    Raises:
        UncertainError: this is no instance, or its metadata service does not reply.
    """
    try:
        found = fetch_node_notices("aws")
    except MetadataError as error:
        raise UncertainError(str(error)) from error
    return [Notice(at=each.at, kind=cast(Literal["terminate", "stop", "rebalance"], each.kind)) for each in found]
