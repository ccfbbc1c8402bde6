"""Pages and JSON of `windlass cluster`: plan, list, one cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from windlass.cli.screen import printable, table
from windlass.core import phrases

if TYPE_CHECKING:
    from windlass.cluster.config import ClusterConfig
    from windlass.cluster.cost import ClusterCost
    from windlass.cluster.machine import Choice
    from windlass.cluster.plan import ClusterPlan, PlanRow
    from windlass.cluster.view import ClusterRow, ClusterView, NodeRow

__all__ = ["list_lines", "plan_lines", "row_data", "view_data", "view_lines"]


def plan_lines(config: ClusterConfig, plan: ClusterPlan) -> Iterator[str]:
    """Yield what `up` would make, and what it costs."""
    yield f"{config.name} on {config.place.kind}: {phrases.count(sum(row.least for row in plan.rows), 'node')} at first"
    header: tuple[str, ...] = ("group", "nodes", "machines", "price per hour")
    rows: list[tuple[str, ...]] = [
        (row.group, _counts(row), _choices(row.choices), _price(row.price_per_hour)) for row in plan.rows
    ]
    if not plan.is_rented:
        header, rows = header[:3], [row[:3] for row in rows]
    yield from table(header, rows, indent="  ")
    if not plan.is_rented:
        yield "  these hosts exist: processes of Ray are started on them, and no machine is made"
    elif plan.per_hour is not None:
        most = "" if plan.most_per_hour == plan.per_hour else f", ${plan.most_per_hour:.2f} with all nodes"
        dearest = ", where each machine costs most" if len(_regions(plan.rows)) > 1 else ""
        yield f"  list price: at most ${plan.per_hour:.2f} an hour{most}{dearest}"
    if len(_regions(plan.rows)) > 1:
        yield f"  all nodes are in one region: the first of {', '.join(_regions(plan.rows))} that has a head"
    for why in _skipped(plan):
        yield printable(f"  not tried: {why}")
    if config.ttl is not None:
        yield f"  every node ends itself after {phrases.duration(config.ttl)}"


def _counts(row: PlanRow) -> str:
    return str(row.least) if row.least == row.most else f"{row.least} to {row.most}"


def _regions(rows: Sequence[PlanRow]) -> list[str]:
    """Return the regions in which machines are tried, in order."""
    return list(dict.fromkeys(choice.region for row in rows for choice in row.choices if choice.region))


def _skipped(plan: ClusterPlan) -> Iterator[str]:
    """Yield what is not tried, without the single types of a region that is skipped as a whole."""
    whole = {skip.region for skip in plan.skips if not skip.type}
    yield from (skip.why for skip in plan.skips if not skip.type or skip.region not in whole)


def _choices(choices: Sequence[Choice]) -> str:
    has_regions = len({each.region for each in choices}) > 1
    words = [
        " ".join(filter(None, [each.type, "spot" if each.is_spot else "", each.zone or each.region * has_regions]))
        for each in choices
    ]
    shown = words[:4] + ([f"and {len(words) - 4} more"] if len(words) > 4 else [])
    return printable(", ".join(shown)) or "none"


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"${price:.4g} each"


def list_lines(rows: Sequence[ClusterRow]) -> list[str]:
    """Return the table of clusters."""
    now = time.time()
    cells = []
    for row in rows:
        nodes = " + ".join(f"{num} {group}" for group, num in row.nodes.items())
        since = phrases.ago(row.since_at, now) if row.since_at else ""
        cells.append((row.name, row.kind, row.state or "damaged", nodes or "-", since, printable(row.problem)))
    return table(("name", "place", "state", "nodes", "since", ""), cells)


def row_data(row: ClusterRow) -> dict[str, Any]:
    """Return a line of the list as JSON has it."""
    return asdict(row)


def view_lines(view: ClusterView) -> Iterator[str]:
    """Yield the page of one cluster."""
    row, config, now = view.row, view.config, time.time()
    yield f"{row.name}  {row.state}"
    region = next((node.machine.choice.region for node in view.nodes), "")
    yield f"  place        {row.kind}{f' ({region})' if region else ''}"
    yield f"  id           {view.id}"
    if row.since_at:
        yield f"  since        {phrases.local_time(row.since_at)} ({phrases.ago(row.since_at, now)})"
    if view.address:
        yield f"  Ray          {view.address}"
    if config.ttl is not None:
        yield f"  ttl          {phrases.duration(config.ttl)}"
    if view.cost is not None:
        yield f"  cost         {_cost_words(view.cost)}"
    if view.nodes:
        header = ("node", "group", "machine", "state", "born", "message")
        yield from table(header, [_node_cells(node, now) for node in view.nodes], indent="  ")
    for intent in view.tried:
        where = intent.choice.zone or intent.choice.region
        what = " ".join(filter(None, [intent.choice.type, where])) or "a machine"
        yield printable(f"  not made     {intent.count} {intent.group}: {what}: {intent.detail or intent.reason}")
    if view.unreachable:
        yield printable(f"  unreachable  {view.unreachable}")


def _cost_words(cost: ClusterCost) -> str:
    """Return what machines have cost at list prices, which is the most that spot machines cost."""
    unknown = f"; {len(cost.unknown)} without a known price" if cost.unknown else ""
    return f"at most ${cost.dollars:.2f} so far, ${cost.per_hour:.2f} an hour{unknown}"


def _node_cells(node: NodeRow, now: float) -> tuple[str, ...]:
    machine, status = node.machine, node.status
    state = machine.state if status is None else status.state
    kind = machine.choice.type or machine.choice.zone or "-"
    message = "" if status is None else status.message
    born = phrases.ago(machine.born_at, now) if machine.born_at else "-"
    return machine.id, machine.group, kind, state, born, printable(message)


def view_data(view: ClusterView) -> dict[str, Any]:
    """Return a cluster as JSON has it."""
    return {
        **row_data(view.row),
        "id": view.id,
        "address": view.address,
        "machines": [
            {**asdict(node.machine), "node": None if node.status is None else asdict(node.status)}
            for node in view.nodes
        ],
        "tried": [asdict(intent) for intent in view.tried],
        "cost": None if view.cost is None else asdict(view.cost),
        "unreachable": view.unreachable,
    }
