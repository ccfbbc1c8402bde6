"""Costs: seconds times price, spot as a bound, unknown prices, and what a limit ends."""

from __future__ import annotations

import pytest

from windlass.cluster.cost import cluster_cost, cost_of, machine_cost
from windlass.cluster.machine import Choice, Machine, MachineState

HOUR = 3600.0


def machine(
    name: str,
    price: float | None = 1.0,
    *,
    born_at: float = 0.0,
    ended_at: float | None = None,
    state: MachineState = "running",
    group: str = "workers",
    is_spot: bool = False,
) -> Machine:
    choice = Choice(type="m5.large", is_spot=is_spot, price_per_hour=price)
    found = "ended" if ended_at is not None else state
    return Machine(id=name, token=name, group=group, state=found, choice=choice, born_at=born_at, ended_at=ended_at)


def test_a_machine_costs_its_seconds() -> None:
    running, ended = machine("a", 0.36, born_at=100.0), machine("b", 0.36, born_at=100.0, ended_at=200.0)
    assert machine_cost(running, 1100.0).dollars == pytest.approx(0.1)
    assert machine_cost(ended, 1100.0).dollars == pytest.approx(0.01)
    assert machine_cost(ended, 1100.0).seconds == 100.0


def test_a_clock_that_went_back_costs_nothing() -> None:
    assert machine_cost(machine("a", born_at=100.0), 50.0).seconds == 0.0


def test_a_spot_machine_has_a_bound() -> None:
    cost = machine_cost(machine("a", 2.0, is_spot=True), HOUR)
    assert (cost.dollars, cost.is_bound) == (2.0, True)


def test_an_unknown_price_is_named_and_never_guessed() -> None:
    cost = cluster_cost([machine("a", 2.0), machine("b", None)], HOUR)
    assert cost.machines["b"].dollars is None
    assert (cost.dollars, cost.seconds, cost.unknown) == (2.0, 2 * HOUR, ("b",))


def test_the_price_per_hour_is_of_those_that_are_charged() -> None:
    machines = [machine("a", 1.0), machine("b", 2.0, state="ending"), machine("c", 4.0, ended_at=HOUR)]
    assert cluster_cost(machines, 2 * HOUR).per_hour == 3.0
    assert cost_of(machines, 2 * HOUR) == pytest.approx(2.0 + 4.0 + 4.0)
