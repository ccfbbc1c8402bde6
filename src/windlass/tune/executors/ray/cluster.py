"""What the cluster has: nodes, what is free on them, and nodes that an autoscaler may add; looked at, at most so often.

Ray's table of free resources lags a moment behind what is placed. So what this sweep placed last is held against it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.core.phrases import count
from windlass.tune.executors.protocol import Fit, Room
from windlass.tune.executors.ray.shapes import describe, left_after
from windlass.tune.trial import Resources

__all__ = ["ClusterSnapshot", "RayCluster", "RayNode", "answer", "capacity", "free_beside", "may_grow_for"]

LOOK_EVERY_S = 0.25
"""Two looks at Ray's tables, a millisecond each, are at least so far apart."""

SETTLES_S = 1.0
"""Until what was placed shows in Ray's table of free resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node that lives."""

    id: str
    host: str
    total: dict[str, float]
    free: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster at one moment.

    Attributes:
        nodes: those that live.
        permitted: resources of each node that an autoscaler may add, one entry per node, at most 64 of a kind.
        lost: resources of nodes that this process saw alive once.
    """

    nodes: tuple[RayNode, ...] = ()
    permitted: tuple[dict[str, float], ...] = ()
    lost: tuple[dict[str, float], ...] = ()


def free_beside(reserved: Iterable[Resources], sight: ClusterSnapshot) -> list[dict[str, float]]:
    """What the nodes have free beside what was placed, or is about to be, and Ray's table may not show yet. Pure."""
    free = [dict(node.free) for node in sight.nodes]
    for resources in reserved:
        free = left_after(resources, free) or free
    return free


def answer(resources: Resources, sight: ClusterSnapshot, free: Sequence[Mapping[str, float]]) -> Room:
    """Whether a trial of this shape starts now, later or never, where the nodes have so much free. Pure."""
    if left_after(resources, free) is not None:
        return Room(Fit.NOW)
    shape = describe(resources)
    present = [node.total for node in sight.nodes]
    if left_after(resources, present) is not None:
        return Room(Fit.LATER, f"{shape} is not free on the {count(len(present), 'node')} of the Ray cluster")
    if left_after(resources, [*present, *sight.permitted]) is not None:
        return Room(Fit.LATER, f"{shape} waits for nodes that Ray's autoscaler may add")
    if left_after(resources, [*present, *sight.lost]) is not None or not present:
        return Room(Fit.LATER, f"{shape} waits for a node of the Ray cluster to come back")
    return Room(Fit.NEVER, f"no node of the Ray cluster, present or permitted, fits {shape}; {_present(sight)}")


def may_grow_for(resources: Resources, sight: ClusterSnapshot) -> bool:
    """Whether asking Ray for this shape could make an autoscaler add a node. Pure."""
    return bool(sight.permitted) and left_after(resources, sight.permitted) is not None


def capacity(sight: ClusterSnapshot) -> dict[str, float]:
    """Totals of what trials may ask for, without the names that Ray gives each node itself."""
    total: dict[str, float] = {}
    for node in sight.nodes:
        for name, amount in _plain(node.total).items():
            total[name] = total.get(name, 0.0) + amount
    return total


class RayCluster:
    """Looks at Ray's tables; the answers are at most LOOK_EVERY_S old."""

    def __init__(self, ray: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._clock = ray, clock
        self._sight = ClusterSnapshot()
        self._looked_at = float("-inf")
        self._known: dict[str, dict[str, float]] = {}
        self._permitted: tuple[dict[str, float], ...] | None = None

    def look(self) -> ClusterSnapshot:
        """The cluster now, or a moment ago."""
        if self._clock() - self._looked_at >= LOOK_EVERY_S:
            self._sight = self._fetch()
            self._looked_at = self._clock()
        return self._sight

    def _fetch(self) -> ClusterSnapshot:
        free = self._ray._private.state.available_resources_per_node()
        alive = [entry for entry in self._ray.nodes() if entry["Alive"]]
        nodes = tuple(
            RayNode(
                id=entry["NodeID"],
                host=entry["NodeManagerHostname"],
                total=dict(entry["Resources"]),
                free=dict(free.get(entry["NodeID"], {})),
            )
            for entry in alive
        )
        self._known |= {node.id: node.total for node in nodes}
        living = {node.id for node in nodes}
        lost = tuple(total for node, total in self._known.items() if node not in living)
        return ClusterSnapshot(nodes=nodes, permitted=self._fetch_permitted(), lost=lost)

    def _fetch_permitted(self) -> tuple[dict[str, float], ...]:
        """Nodes of the autoscaler's configuration, which is there from the cluster's begin or not at all."""
        if self._permitted is None:
            config = self._ray._private.state.state.get_cluster_config()
            groups = config.node_group_configs if config is not None else ()
            self._permitted = tuple(
                {name: float(amount) for name, amount in group.resources.items()}
                for group in groups
                for _ in range(64 if group.max_count < 0 else min(64, group.max_count))
            )
        return self._permitted


def _present(sight: ClusterSnapshot) -> str:
    """What the nodes have, for people: without the names that Ray gives each node itself."""
    shapes = [describe(Resources(bundles=(_plain(node.total),))) for node in sight.nodes]
    counts = {shape: shapes.count(shape) for shape in shapes}
    return "it has " + ", ".join(f"{count} x {shape}" for shape, count in counts.items())


def _plain(amounts: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in amounts.items() if ":" not in k and k not in ("memory", "object_store_memory")}
