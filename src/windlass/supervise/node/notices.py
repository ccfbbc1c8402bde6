"""Notices of a machine's provider that it takes the machine back, from the machine's metadata service.

    aws       instance metadata service, version 2; `AWS_EC2_METADATA_SERVICE_ENDPOINT` names another address
    virtual   `/notices` at the address that `WINDLASS_VIRTUAL_METADATA` names: a list of objects with `at` (seconds
              since the epoch) and `kind`; `WINDLASS_VIRTUAL_ID` is the machine's id

Needs no credentials.
Source: Amazon EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations".
"""

from __future__ import annotations

import calendar
import os
import time
from typing import Any, Callable

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json
from windlass.supervise.node.metadata import (
    ADDRESS_VARIABLE,
    AWS_ENDPOINT_VARIABLE,
    ID_VARIABLE,
    MetadataError,
    aws_token,
    fetch,
    fetch_aws,
    fetch_instance,
)

__all__ = [
    "ADDRESS_VARIABLE",
    "AWS_ENDPOINT_VARIABLE",
    "ID_VARIABLE",
    "MetadataError",
    "NodeNotice",
    "fetch_instance",
    "fetch_notices",
]


@dataclass(frozen=True)
class NodeNotice:
    """Announcement that the machine that this runs on is taken back.

    Attributes:
        at: when, in seconds since the epoch.
        kind: `terminate`, `stop`, or `rebalance`, which states only that it has become likely.
    """

    at: float
    kind: str


def fetch_notices(service: str) -> list[NodeNotice]:
    """Return the announcements for this machine; blocks for a few seconds at most.

    Args:
        service: `aws`, `virtual` or nothing, which announces nothing.

    Raises:
        MetadataError: the service does not reply.
    """
    return _aws_notices() if service == "aws" else _virtual_notices() if service == "virtual" else []


def _aws_notices() -> list[NodeNotice]:
    token = aws_token()
    found: list[NodeNotice] = []
    action = fetch_aws("spot/instance-action", token)
    if action is not None:
        found += _parse(action, lambda data: [NodeNotice(_seconds(data["time"]), _kind(data["action"]))])
    rebalance = fetch_aws("events/recommendations/rebalance", token)
    if rebalance is not None:
        found += _parse(rebalance, lambda data: [NodeNotice(_seconds(data["noticeTime"]), "rebalance")])
    return found


def _virtual_notices() -> list[NodeNotice]:
    content = fetch(f"http://{os.environ.get(ADDRESS_VARIABLE, '')}/notices", {})
    if content is None:
        return []
    return _parse(content, lambda data: [NodeNotice(float(each["at"]), str(each["kind"])) for each in data])


def _kind(action: str) -> str:
    return "terminate" if action == "terminate" else "stop"  # EC2 also has `hibernate`: the machine is gone as well


def _seconds(text: str) -> float:
    """Return seconds since the epoch of a time such as `2026-09-18T08:22:00Z`."""
    return float(calendar.timegm(time.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S")))


def _parse(content: bytes, read: Callable[[Any], list[NodeNotice]]) -> list[NodeNotice]:
    try:
        return read(decode_json(content))
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"unreadable notice {content[:200]!r}: {error}") from error
