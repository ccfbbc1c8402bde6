"""State of a cluster: the fold of its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, field, replace
from typing import Any, Literal

from windlass.cluster.machine import Choice, Machine
from windlass.core.dataclass import dataclass
from windlass.record.frames import Record

__all__ = ["NO_CAPACITY", "ClusterState", "Intent", "fold", "intent_data", "machine_data"]

NO_CAPACITY = "no-capacity"
"""Reason of a request that found no machines of its kind; the next kind is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A request for machines, recorded before it is made.

    Attributes:
        asked_at: when it was recorded, in seconds since the epoch; shown, never used in decisions.
        round: number of wishes recorded before it.
        status: `open` until it is known what came of it; `void`: no machine came of it and none will.
        reason: why it is void; `detail` has the provider's words.
    """

    token: str
    group: str
    count: int
    choice: Choice
    asked_at: float
    round: int = 0
    status: Literal["open", "made", "void"] = "open"
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """State of a cluster as its journal records it.

    Attributes:
        wanted: `up`, or `down` since somebody asked for its end.
        wanted_at: since when, and why.
        round: number of wishes so far.
        nodes: every machine that was ever seen, by id.
        is_closed: its end was confirmed: the provider lists nothing of it.
        is_cleared: what its place had besides machines is removed too.
        sealing: head that was told, or may have been told, to make no more machines.
        accounted: head that makes no more machines, and all of whose machines are in `nodes`: no list is needed to know them.
    """

    wanted: Literal["up", "down"] = "up"
    wanted_at: float = 0.0
    why: str = ""
    round: int = 0
    intents: dict[str, Intent] = field(default_factory=dict)
    nodes: dict[str, Machine] = field(default_factory=dict)
    ending: dict[str, float] = field(default_factory=dict)
    is_closed: bool = False
    is_cleared: bool = False
    sealing: str = ""
    accounted: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether nothing of the cluster is left anywhere."""
        return self.is_closed and self.is_cleared

    @property
    def open_intents(self) -> list[Intent]:
        """Requests whose result is unknown."""
        return [intent for intent in self.intents.values() if intent.status == "open"]

    @property
    def refused(self) -> list[Intent]:
        """Requests since the last wish that brought no machines."""
        return [each for each in self.intents.values() if each.round == self.round and each.status == "void"]

    def living(self, group: str | None = None) -> list[Machine]:
        """Return the machines that have not ended, of a group or of all."""
        return [node for node in self.nodes.values() if node.is_charged and group in {None, node.group}]


def fold(records: Iterable[Record], state: ClusterState | None = None) -> ClusterState:
    """Return the state after records; records of other kinds are ignored."""
    found = state or ClusterState()
    for record in records:
        step = _STEPS.get(record.kind)
        if step is not None:
            found = step(found, record)
    return found


def _want(state: ClusterState, record: Record) -> ClusterState:
    data = record.data
    return replace(
        state,
        wanted=data["state"],
        wanted_at=record.at,
        why=data.get("why", ""),
        round=state.round + 1,
        is_closed=False,
        is_cleared=False,
        accounted="" if data["state"] == "up" else state.accounted,
    )


def _intend(state: ClusterState, record: Record) -> ClusterState:
    data = record.data
    intent = Intent(
        token=data["token"],
        group=data["group"],
        count=data["count"],
        choice=Choice(**data["choice"]),
        asked_at=record.at,
        round=state.round,
    )
    return replace(state, intents={**state.intents, intent.token: intent})


def _resolve(state: ClusterState, record: Record) -> ClusterState:
    token, status = record.data["token"], record.data["status"]
    known = state.intents.get(token)
    if known is None:
        return state
    reason, detail = record.data.get("reason", ""), record.data.get("detail", "")
    resolved = replace(known, status=status, reason=reason, detail=detail)
    return replace(state, intents={**state.intents, token: resolved})


def _see(state: ClusterState, record: Record) -> ClusterState:
    data = dict(record.data["node"])
    node = Machine(**{**data, "choice": Choice(**data["choice"])})
    old = state.nodes.get(node.id)
    if old is not None and old.state == "ended":
        return state  # a machine that ended stays ended, whatever a late list says
    return replace(state, nodes={**state.nodes, node.id: node})


def _end(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, ending={**state.ending, **dict.fromkeys(record.data["ids"], record.at)})


def _seal(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, sealing=record.data["head"])


def _account(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, accounted=record.data["head"])


def _unseal(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, sealing="", accounted="")


def _close(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, is_closed=True)


def _clear(state: ClusterState, record: Record) -> ClusterState:
    return replace(state, is_cleared=True)


_STEPS = {
    "cluster.wanted": _want,
    "cluster.intent": _intend,
    "cluster.resolved": _resolve,
    "cluster.node": _see,
    "cluster.ending": _end,
    "cluster.sealing": _seal,
    "cluster.accounted": _account,
    "cluster.unsealed": _unseal,
    "cluster.closed": _close,
    "cluster.cleared": _clear,
}


def machine_data(node: Machine) -> dict[str, Any]:
    """Return a node as the journal stores it."""
    return asdict(node)


def intent_data(intent: Intent) -> dict[str, Any]:
    """Return a request as the journal stores it."""
    return {"token": intent.token, "group": intent.group, "count": intent.count, "choice": asdict(intent.choice)}
