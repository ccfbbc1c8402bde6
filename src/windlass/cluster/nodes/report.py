"""Report of a rented cluster's head: its nodes, the machines that it made, and what came of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from windlass.cluster.machine import Choice, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.state import Intent
from windlass.core.codec import decode
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json
from windlass.supervise.node.spec import NodeStatus

__all__ = ["HeadReport", "fetch_report", "parse_report", "seal_head", "unseal_head"]

T = TypeVar("T")

_ASK = 'f="$1" v="$2"; set -- "$HOME"/.windlass/clusters/windlass-*.pyz; exec python3 -I -S "$1" "$v" "$f"'
"""Asks with the program that the head's agent was started with; $1 is the node's folder, $2 the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReport:
    """Report of the head.

    Attributes:
        statuses: of the head and of every node that spoke to it, by the machine's id.
        machines: those that the head made, ended ones included.
        requests: those of the head, the oldest first.
    """

    statuses: Mapping[str, NodeStatus]
    machines: tuple[Machine, ...]
    requests: tuple[Intent, ...]


def fetch_report(host: NodeHost, token: str) -> HeadReport:
    """Ask the head; one command over its shell, which stores nothing there.

    Args:
        token: the head's token.

    Raises:
        UnreachableError: no connection.
        PreconditionError: the reply is something else (`invalid-reply`).
    """
    return parse_report(_ask(host, token, "node-status"), host.shell.name)


def seal_head(host: NodeHost, token: str) -> HeadReport:
    """Have a head make no more machines; return its report, which nothing changes any more. Idempotent.

    Raises:
        UnreachableError: no connection.
        PreconditionError: the head cannot do it (`invalid-reply`).
    """
    return parse_report(_ask(host, token, "node-seal"), host.shell.name)


def unseal_head(host: NodeHost, token: str) -> None:
    """Let a head make machines again. Idempotent; raises what `seal_head` raises."""
    _ask(host, token, "node-unseal")


def _ask(host: NodeHost, token: str, command: str) -> str:
    answer = host.shell.run(["sh", "-c", _ASK, "sh", host.folder(token), command])
    if answer.code:
        last = (answer.err.strip().splitlines() or ["no output"])[-1]
        raise PreconditionError(f"{host.shell.name}: `{command}` failed: {last}", code="invalid-reply")
    return answer.out


def parse_report(text: str, name: str) -> HeadReport:
    """Decode the lines of `node-status`; fields that are not known are ignored."""
    statuses: dict[str, NodeStatus] = {}
    machines: list[Machine] = []
    requests: list[Intent] = []
    try:
        for data in (decode_json(line) for line in text.splitlines()):
            if data["kind"] == "node":
                status = NodeStatus.from_data(data)
                statuses[status.instance] = status
            elif data["kind"] == "machine":
                machines.append(_read(Machine, data))
            elif data["kind"] == "tried":
                requests.append(_read(Intent, data))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PreconditionError(f"{name}: invalid reply of `node-status`: {error}", code="invalid-reply") from error
    return HeadReport(statuses=statuses, machines=tuple(machines), requests=tuple(requests))


def _read(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a record with its choice; fields that are not known are left out."""
    return decode(kind, {**_known(kind, data), "choice": _known(Choice, data["choice"])})


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {key: value for key, value in data.items() if key in names}
