"""Order of kinds of machines: spot first with fallback and back, and the limit of the price per hour."""

from __future__ import annotations

import pytest

from windlass.cluster.machine import Choice
from windlass.cluster.scaling.capacity import PAUSE_S, REFUSED_S, exceeds_limit, order_choices, wait_s

SPOT, OTHER, DEMAND = Choice(type="a", is_spot=True), Choice(type="b", is_spot=True), Choice(type="a")
ALL = [SPOT, OTHER, DEMAND]


def test_the_list_is_tried_in_its_order() -> None:
    assert order_choices(ALL, {}, 0.0) == ALL


def test_a_refused_kind_comes_last_until_its_time_is_over_which_is_the_way_back_to_spot() -> None:
    refused = {SPOT: 100.0}
    assert order_choices(ALL, refused, 100.0 + REFUSED_S - 1) == [OTHER, DEMAND, SPOT]
    assert order_choices(ALL, refused, 100.0 + REFUSED_S) == ALL


def test_a_group_waits_only_when_every_kind_was_refused() -> None:
    assert wait_s(ALL, {SPOT: 5.0, OTHER: 6.0}, 7.0) == 0.0
    assert wait_s(ALL, {SPOT: 5.0, OTHER: 6.0, DEMAND: 7.0}, 9.0) == PAUSE_S - 2.0
    assert wait_s(ALL, {SPOT: 5.0, OTHER: 6.0, DEMAND: 7.0}, 7.0 + PAUSE_S) == 0.0
    assert wait_s([], {}, 0.0) == 0.0


@pytest.mark.parametrize(
    ("limit", "prices", "price", "count", "refused"),
    [
        (None, [None], None, 5, False),
        (3.0, [1.0], 1.0, 2, False),
        (3.0, [1.0], 1.0, 3, True),
        (3.0, [], None, 1, True),
        (3.0, [None], 0.1, 1, True),
    ],
)
def test_the_limit_counts_all_machines_and_unknown_prices_do_not_pass(
    limit: float | None, prices: list[float | None], price: float | None, count: int, refused: bool
) -> None:
    assert bool(exceeds_limit(limit, prices, price, count)) is refused
