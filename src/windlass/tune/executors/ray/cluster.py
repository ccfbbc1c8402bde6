"""Resources of a Ray cluster: its nodes, what is free, what an autoscaler may add, and whether trials fit.

Ray's table of free resources is updated with a delay, so recent placements of this sweep are subtracted from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass.core.phrases import count
from windlass.tune.executors.protocol import Fit, Room
from windlass.tune.trial import Resources

__all__ = [
    "ClusterSnapshot",
    "RayCluster",
    "RayNode",
    "actor_options",
    "answer",
    "capacity",
    "describe",
    "free_beside",
    "group_bundles",
    "left_after",
    "may_grow_for",
    "needs_group",
]


_TINY = 1e-4
"""Ray counts resources in steps of 1/10000."""

_MAX_STEPS = 1_000
"""Maximum steps of a placement search; beyond it, the shape is assumed to fit, and Ray decides."""

Amounts = Mapping[str, float]


def needs_group(resources: Resources) -> bool:
    """Return whether the bundles need a placement group; a single bundle belongs to the actor itself."""
    return len(group_bundles(resources)) > 1


def group_bundles(resources: Resources) -> list[dict[str, float]]:
    """Return the bundles for the placement group, without empty ones."""
    return [found for bundle in resources.bundles if (found := _positive(bundle))]


def actor_options(resources: Resources) -> dict[str, Any]:
    """Return the options for the trial's main process, which gets the whole first bundle."""
    own = _positive(resources.bundles[0]) if resources.bundles else {}
    options: dict[str, Any] = {"num_cpus": own.pop("CPU", 0), "num_gpus": own.pop("GPU", 0)}
    if "memory" in own:
        options["memory"] = int(own.pop("memory"))
    if own:
        options["resources"] = own
    return options


def describe(resources: Resources) -> str:
    """Describe resources: `2 x {1 CPU, 0.5 GPU} SPREAD`."""
    texts = [", ".join(f"{amount:g} {name}" for name, amount in sorted(b.items())) for b in group_bundles(resources)]
    counts = {text: texts.count(text) for text in texts}
    shape = " + ".join(f"{count} x {{{text}}}" if count > 1 else f"{{{text}}}" for text, count in counts.items())
    return (shape or "{}") + (f" {resources.strategy}" if len(texts) > 1 else "")


def left_after(resources: Resources, free: Sequence[Amounts]) -> list[dict[str, float]] | None:
    """Return what is free on each node after placing the bundles, or None if they do not fit.

    Exact up to `_MAX_STEPS` tries. PACK and SPREAD fit if any split over the nodes does. Unknown strategies never fit.
    """
    bundles = group_bundles(resources)
    if resources.strategy == "STRICT_PACK":
        bundles = [_positive(resources.total)] if bundles else []
    elif resources.strategy not in ("PACK", "SPREAD", "STRICT_SPREAD"):
        return None
    bundles.sort(key=lambda bundle: sorted(bundle.values(), reverse=True), reverse=True)
    room = [dict(amounts) for amounts in free]
    search = _Search(bundles, room, is_strict=resources.strategy == "STRICT_SPREAD")
    return room if search.fits(0) else None


class _Search:
    """Backtracking search for nodes, bundle by bundle; nodes with equal resources count as one."""

    def __init__(self, bundles: list[dict[str, float]], room: list[dict[str, float]], *, is_strict: bool) -> None:
        self.bundles, self.room, self.is_strict = bundles, room, is_strict
        self.taken: list[int] = []
        self.num_steps = 0

    def fits(self, number: int) -> bool:
        if number == len(self.bundles):
            return True
        bundle, tried = self.bundles[number], list[dict[str, float]]()
        for index, amounts in enumerate(self.room):
            if (self.is_strict and index in self.taken) or amounts in tried or not _fits(bundle, amounts):
                continue
            self.num_steps += 1
            if self.num_steps > _MAX_STEPS:
                return True
            tried.append(dict(amounts))
            _take(bundle, amounts, 1)
            self.taken.append(index)
            if self.fits(number + 1):
                return True
            self.taken.pop()
            _take(bundle, amounts, -1)
        return False


def _fits(bundle: Amounts, amounts: Amounts) -> bool:
    return all(amounts.get(name, 0.0) + _TINY >= amount for name, amount in bundle.items())


def _take(bundle: Amounts, amounts: dict[str, float], sign: int) -> None:
    for name, amount in bundle.items():
        amounts[name] = round(amounts[name] - sign * amount, 6)


def _positive(bundle: Amounts) -> dict[str, float]:
    return {name: amount for name, amount in bundle.items() if amount > 0}


LOOK_EVERY_S = 0.25
"""Minimum time between two reads of Ray's tables, a millisecond each."""

SETTLES_S = 1.0
"""Time until placed resources show in Ray's table of free resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """Live node of the cluster."""

    id: str
    host: str
    total: dict[str, float]
    free: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """Snapshot of the cluster.

    Attributes:
        nodes: the live nodes.
        permitted: resources of each node that an autoscaler may add, one entry per node, at most 64 of a kind.
        lost: resources of nodes that were alive earlier, or that are about to be taken away.
        leaving: ids of nodes that Ray drains, with the times when they go, in seconds since the epoch; 0 if unknown. Ray
            starts nothing more on them.
    """

    nodes: tuple[RayNode, ...] = ()
    permitted: tuple[dict[str, float], ...] = ()
    lost: tuple[dict[str, float], ...] = ()
    leaving: Mapping[str, float] = field(default_factory=dict)


def free_beside(reserved: Iterable[Resources], sight: ClusterSnapshot) -> list[dict[str, float]]:
    """Return what is free on each node, minus placements that Ray's table may not show yet. Pure."""
    free = [dict(node.free) for node in sight.nodes]
    for resources in reserved:
        free = left_after(resources, free) or free
    return free


def answer(resources: Resources, sight: ClusterSnapshot, free: Sequence[Mapping[str, float]]) -> Room:
    """Return whether a trial with these resources starts now, later or never, given what is free. Pure."""
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
    """Return whether a request for these resources could make an autoscaler add a node. Pure."""
    return bool(sight.permitted) and left_after(resources, sight.permitted) is not None


def capacity(sight: ClusterSnapshot) -> dict[str, float]:
    """Return the totals that trials may request, without the resources that Ray names after nodes."""
    total: dict[str, float] = {}
    for node in sight.nodes:
        for name, amount in _plain(node.total).items():
            total[name] = total.get(name, 0.0) + amount
    return total


class RayCluster:
    """Reader of Ray's tables, whose snapshots are at most LOOK_EVERY_S old."""

    def __init__(self, ray: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._ray, self._clock = ray, clock
        self._sight = ClusterSnapshot()
        self._looked_at = float("-inf")
        self._known: dict[str, dict[str, float]] = {}
        self._permitted: tuple[dict[str, float], ...] | None = None
        self._noticed: dict[str, float] = {}

    def leave(self, node: str, gone_at: float) -> None:
        """Use a node for no more slots, because it is about to be taken away."""
        if node not in self._noticed:
            self._noticed[node] = gone_at
            self._looked_at = float("-inf")

    def look(self) -> ClusterSnapshot:
        """Return a new snapshot, or the last one if it is recent."""
        if self._clock() - self._looked_at >= LOOK_EVERY_S:
            self._sight = self._fetch()
            self._looked_at = self._clock()
        return self._sight

    def _fetch(self) -> ClusterSnapshot:
        free = self._ray._private.state.available_resources_per_node()
        draining = self._ray._private.state.state.get_draining_nodes()
        leaving = {**{node: at_ms / 1000 for node, at_ms in draining.items()}, **self._noticed}
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
        nodes = tuple(node for node in nodes if node.id not in leaving)
        living = {node.id for node in nodes}
        lost = tuple(total for node, total in self._known.items() if node not in living)
        return ClusterSnapshot(nodes=nodes, permitted=self._fetch_permitted(), lost=lost, leaving=leaving)

    def _fetch_permitted(self) -> tuple[dict[str, float], ...]:
        """Read the autoscaler's configuration, which does not change after the cluster has started."""
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
    """Describe the totals of the nodes, without the resources that Ray names after nodes."""
    shapes = [describe(Resources(bundles=(_plain(node.total),))) for node in sight.nodes]
    counts = {shape: shapes.count(shape) for shape in shapes}
    return "it has " + ", ".join(f"{count} x {shape}" for shape, count in counts.items())


def _plain(amounts: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in amounts.items() if ":" not in k and k not in ("memory", "object_store_memory")}
