"""Clusters as `windlass cluster ls` and `show` print them: from the journal, and from the head if it responds.

Reads only; imports no library of a cloud, and no Ray.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.cost import ClusterCost, cluster_cost
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.nodes.host import in_parallel
from windlass.cluster.nodes.report import fetch_report
from windlass.cluster.places import MachinePlace
from windlass.cluster.state import ClusterState, Intent
from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.supervise.node.spec import NodeStatus

__all__ = ["ClusterRow", "ClusterView", "NodeRow", "row_of", "view_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """A cluster in the list.

    Attributes:
        state: `up`; `ending` while the provider may still list machines; `down`; `unknown` while it is not known what
            came of a request for machines; `empty` if none was made.
        nodes: number of machines by group, as this machine's journal knows them.
        since_at: when it was last wanted up or down, in seconds since the epoch.
        problem: why its folder cannot be read.
    """

    name: str
    kind: str = ""
    state: str = ""
    nodes: Mapping[str, int] = field(default_factory=dict)
    since_at: float = 0.0
    ttl_s: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node: its machine as the provider describes it, and what its agent says."""

    machine: Machine
    status: NodeStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster.

    Attributes:
        nodes: the head first; with `all_nodes`, ended ones too.
        tried: requests that brought no machine, since the last `up` and on the head.
        cost: of all machines until now, ended ones included; None on hosts that exist.
        unreachable: why the head does not respond, if so; what is shown is then the last that was known.
    """

    row: ClusterRow
    config: ClusterConfig
    id: str
    address: str
    nodes: tuple[NodeRow, ...]
    tried: tuple[Intent, ...]
    cost: ClusterCost | None = None
    unreachable: str = ""


def row_of(home: ClusterHome) -> ClusterRow:
    """Return a cluster's line; reads files only. A damaged folder is a line with its problem."""
    try:
        state, config = home.state(), home.config()
    except (WindlassError, OSError, ValueError) as error:
        return ClusterRow(name=home.name, problem=str(error).splitlines()[0])
    return _row(home.name, config, state, state.living())


def _row(name: str, config: ClusterConfig, state: ClusterState, machines: Iterable[Machine]) -> ClusterRow:
    nodes = Counter(machine.group for machine in machines if machine.state not in GONE)
    if state.is_closed:
        words = "down"
    elif state.wanted == "down":
        words = "ending"
    else:
        words = "up" if nodes[HEAD] else "unknown" if state.open_intents else "empty"
    return ClusterRow(
        name=name,
        kind=config.place.kind,
        state=words,
        nodes=dict(nodes),
        since_at=state.wanted_at,
        ttl_s=config.ttl,
    )


def view_of(home: ClusterHome, place: MachinePlace) -> ClusterView:
    """Return a cluster as it is now, as far as its nodes respond; changes nothing.

    Cost: one command over a shell for each host that exists, or for the head of a rented cluster.
    """
    state, config = home.state(), home.config()
    requests = list(state.refused)
    machines = {each.id: each for each in state.living() if each.state not in GONE}
    ever = dict(state.nodes)
    heads = [each for each in machines.values() if each.group == HEAD]
    if place.provider.is_rented and heads:
        try:
            report = fetch_report(place.host(heads[0]), heads[0].token)
        except WindlassError as error:
            statuses, problems = {}, [error.message]
        else:
            made = {each.id: each for each in report.machines if each.state not in GONE}
            machines, statuses, problems = {**machines, **made}, dict(report.statuses), []
            ever.update({each.id: each for each in report.machines})
            requests += [each for each in report.requests if each.status == "void"]
    elif place.provider.is_rented:
        statuses, problems = {}, []  # workers are reached through their head alone
    else:
        statuses, problems = _statuses(place, list(machines.values()))
    row = _row(home.name, config, state, list(machines.values()))
    nodes = tuple(NodeRow(machine=each, status=statuses.get(each.id)) for each in _head_first(machines.values()))
    return ClusterView(
        row=row,
        config=config,
        id=home.id,
        address=next((status.head for status in statuses.values() if status.head), ""),
        nodes=nodes,
        tried=tuple(requests),
        cost=cluster_cost(ever.values(), time.time()) if place.provider.is_rented else None,
        unreachable="; ".join(problems),
    )


def _head_first(machines: Iterable[Machine]) -> list[Machine]:
    return sorted(machines, key=lambda each: (each.group != HEAD, each.group, each.born_at, each.id))


def _statuses(place: MachinePlace, machines: Sequence[Machine]) -> tuple[dict[str, NodeStatus], list[str]]:
    """Return what the agents of hosts say, by the machine's id, and which hosts do not respond."""
    found = in_parallel(machines, lambda machine: place.host(machine).status(machine.token))
    pairs = list(zip(machines, found, strict=True))
    statuses = {machine.id: each for machine, each in pairs if isinstance(each, NodeStatus)}
    return statuses, [each.message for _, each in pairs if isinstance(each, WindlassError)]
