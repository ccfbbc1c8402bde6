"""Cost of a cluster's machines: seconds times list price. Pure.

A spot machine counts at the list price, which is the most that it costs. A machine without a known price has none, and
a sum that contains one is a lower bound; limits are refused in the plan where a price is not known. EC2 charges an instance
for at least one minute, which is not counted here: the bill of a machine that ended earlier is higher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.cluster.machine import Machine
from windlass.core.dataclass import dataclass

__all__ = [
    "ClusterCost",
    "MachineCost",
    "cluster_cost",
    "cost_of",
    "machine_cost",
]

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """Cost of a machine until now, or until its end.

    Attributes:
        dollars: at the list price; None: the price is not known.
        is_bound: the real price is lower or the same: a spot machine.
    """

    seconds: float
    dollars: float | None
    is_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCost:
    """Cost of all machines of a cluster.

    Attributes:
        machines: by id.
        dollars: of those with a known price.
        per_hour: of those that are charged now and have a known price.
        unknown: ids of machines without a known price.
    """

    machines: Mapping[str, MachineCost]
    seconds: float
    dollars: float
    per_hour: float
    unknown: tuple[str, ...]


def machine_cost(machine: Machine, now: float) -> MachineCost:
    """Return a machine's cost; a clock that went back costs nothing.

    Args:
        now: seconds since the epoch.
    """
    seconds = max(0.0, (now if machine.ended_at is None else machine.ended_at) - machine.born_at)
    price = machine.choice.price_per_hour
    dollars = None if price is None else seconds * price / _HOUR_S
    return MachineCost(seconds=seconds, dollars=dollars, is_bound=machine.choice.is_spot)


def cluster_cost(machines: Iterable[Machine], now: float) -> ClusterCost:
    """Return the cost of machines, ended ones included."""
    known = list(machines)
    costs = {machine.id: machine_cost(machine, now) for machine in known}
    prices = [machine.choice.price_per_hour or 0.0 for machine in known if machine.is_charged]
    return ClusterCost(
        machines=costs,
        seconds=sum(each.seconds for each in costs.values()),
        dollars=sum(each.dollars or 0.0 for each in costs.values()),
        per_hour=sum(prices),
        unknown=tuple(name for name, each in costs.items() if each.dollars is None),
    )


def cost_of(machines: Iterable[Machine], now: float) -> float:
    """Return the US dollars that machines have cost; those without a known price count as nothing."""
    return cluster_cost(machines, now).dollars
