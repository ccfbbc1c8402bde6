"""Check that a task's bundles (GPUs and CPUs reserved together) fit on its nodes.

Groups are placed in the order in which they are written, like by a program that creates Ray placement groups one by
one: `pack` fills a node before it uses the next, `spread` and `strict-spread` use the emptiest node.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from windlass.core.dataclass import dataclass
from windlass.plan.diagnostics import Diagnostics
from windlass.plan.tokens.resolve import Scope, calculated
from windlass.plan.tokens.scope import scope_of
from windlass.plan.tokens.tokens import Token
from windlass.spec import Bundle, Experiment
from windlass.supervise.job import TaskShape

__all__ = ["BundleGroup", "bundles_of"]

_MAX_BUNDLES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleGroup:
    """Entry of `bundles`, with its numbers evaluated."""

    name: str
    count: int
    gpus: int
    cpus: int
    strategy: str


@dataclass(slots=True)
class _Node:
    """Free resources on one node; `cpus` is None if unknown."""

    gpus: int
    cpus: int | None

    def take(self, group: BundleGroup, count: int) -> None:
        self.gpus -= count * group.gpus
        self.cpus = None if self.cpus is None else self.cpus - count * group.cpus


def bundles_of(name: str, experiment: Experiment, shape: TaskShape, diagnostics: Diagnostics) -> tuple[str, ...]:
    """Return lines that describe a task's bundles, and refuse bundles that do not fit.

    CPUs are not checked if `shape.node_cpus` is unknown.
    """
    task = experiment.tasks[name]
    if not task.bundles or (task.total_gpus is not None and not shape.gpus):  # already refused if there is no shape
        return ()
    scope = scope_of(name, experiment, shape)
    groups = tuple(_groups(f"tasks.{name}", task.bundles, scope, diagnostics))
    if not groups or len(groups) < len(task.bundles):
        return ()
    lines = [*(_line(group) for group in groups), _together(groups, shape)]
    problem = _place(groups, shape)
    if problem is not None:
        group, why = problem
        message = f"the bundles of task `{name}` do not fit: {why} ({'; '.join(lines)})"
        hint = f"change tasks.{name}.bundles.{group.name}, or the shape of the task"
        diagnostics.add(f"tasks.{name}.bundles.{group.name}", message, "does-not-fit", hint)
    return tuple(lines)


def _groups(path: str, bundles: Mapping[str, Bundle], scope: Scope, diagnostics: Diagnostics) -> Iterator[BundleGroup]:
    for name, bundle in bundles.items():
        where = f"{path}.bundles.{name}"
        numbers = [
            _number(getattr(bundle, key), scope, diagnostics, f"{where}.{key}") for key in ("count", "gpus", "cpus")
        ]
        count, gpus, cpus = numbers
        if count is not None and gpus is not None and cpus is not None:
            yield BundleGroup(name=name, count=count, gpus=gpus, cpus=cpus, strategy=bundle.strategy)


def _number(value: int | str, scope: Scope, diagnostics: Diagnostics, path: str) -> int | None:
    """Evaluate a number or expression, which must not be negative; return None after a problem."""
    if isinstance(value, int):
        return value
    text = value[2:-1].strip()
    found = scope.values[text] if text in scope.values else calculated(Token(text), scope, diagnostics, path)
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return found
    if found != "":
        message = f"`{value}` in {path} is {found}, and must be a number from 0"
        diagnostics.add(path, message, "invalid-expression", "check the shape and the parameters that it uses")
    return None


def _place(groups: tuple[BundleGroup, ...], shape: TaskShape) -> tuple[BundleGroup, str] | None:
    """Return the first group that does not fit, with the reason; None if all fit."""
    if any(group.count > _MAX_BUNDLES for group in groups):
        group = next(group for group in groups if group.count > _MAX_BUNDLES)
        return group, f"{group.name} is {group.count} bundles, and no more than {_MAX_BUNDLES} can be placed"
    nodes = [_Node(shape.gpus, shape.node_cpus or None) for _ in range(shape.nodes)]
    for group in groups:
        num_placed = _place_group(group, nodes)
        if num_placed < group.count:
            return group, f"{group.name} gets {num_placed} of {group.count} bundles; {_why(group, nodes)}"
    return None


def _place_group(group: BundleGroup, nodes: list[_Node]) -> int:
    """Place as many bundles of a group as fit, and return their number."""
    if group.strategy == "strict-pack":
        return next((_fill([node], group) for node in nodes if _room(node, group) >= group.count), 0)
    if group.strategy == "strict-spread":
        chosen = sorted((node for node in nodes if _room(node, group)), key=lambda node: -node.gpus)[: group.count]
        for node in chosen:
            node.take(group, 1)
        return len(chosen)
    return _spread(nodes, group) if group.strategy == "spread" else _fill(nodes, group)


def _room(node: _Node, group: BundleGroup) -> int:
    """Return how many bundles of a group fit on one node."""
    by_gpus = node.gpus // group.gpus if group.gpus else group.count
    by_cpus = node.cpus // group.cpus if group.cpus and node.cpus is not None else group.count
    return min(by_gpus, by_cpus)


def _fill(nodes: list[_Node], group: BundleGroup) -> int:
    num_placed = 0
    for node in nodes:
        num_here = min(_room(node, group), group.count - num_placed)
        node.take(group, num_here)
        num_placed += num_here
    return num_placed


def _spread(nodes: list[_Node], group: BundleGroup) -> int:
    """Place each bundle on the node with the most free GPUs, then CPUs."""
    queue = [(-node.gpus, -(node.cpus or 0), index) for index, node in enumerate(nodes) if _room(node, group)]
    heapq.heapify(queue)
    num_placed = 0
    while queue and num_placed < group.count:
        _, _, index = heapq.heappop(queue)
        node = nodes[index]
        node.take(group, 1)
        num_placed += 1
        if _room(node, group):
            heapq.heappush(queue, (-node.gpus, -(node.cpus or 0), index))
    return num_placed


def _why(group: BundleGroup, nodes: list[_Node]) -> str:
    """Return why no further bundle of a group fits."""
    has_gpus = [node for node in nodes if node.gpus >= group.gpus]
    if group.strategy == "strict-spread" and group.count > len(nodes):
        return f"each needs its own node, and there are {len(nodes)}"
    if group.strategy == "strict-pack":
        return "all of them need the same node, and no node has enough left"
    if not has_gpus:
        left = sum(node.gpus for node in nodes)
        return f"each takes {_amount(group.gpus, 'GPU')} of one node, and {left} of all nodes are left"
    left_cpus = max(node.cpus or 0 for node in has_gpus)
    return f"each takes {_amount(group.cpus, 'CPU')}, and nodes with GPUs left have {left_cpus} CPUs left at most"


def _line(group: BundleGroup) -> str:
    each = ", ".join(_amount(number, noun) for number, noun in ((group.gpus, "GPU"), (group.cpus, "CPU")) if number)
    total = ", ".join(
        _amount(group.count * number, noun) for number, noun in ((group.gpus, "GPU"), (group.cpus, "CPU")) if number
    )
    return f"{group.name}: {group.count} x ({each}), {group.strategy}: {total}"


def _together(groups: tuple[BundleGroup, ...], shape: TaskShape) -> str:
    gpus = sum(group.count * group.gpus for group in groups)
    wanted = sum(group.count * group.cpus for group in groups)
    has_cpus = (
        f"{shape.nodes} x {shape.node_cpus} = {shape.nodes * shape.node_cpus}"
        if shape.node_cpus
        else "an unknown number of"
    )
    has_gpus = f"{shape.nodes} x {shape.gpus} = {shape.nodes * shape.gpus}"
    return f"together: {gpus} of {has_gpus} GPUs, {wanted} of {has_cpus} CPUs"


def _amount(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"
