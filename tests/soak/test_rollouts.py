"""Long and many histories of the controller of rollouts, with other seeds than tests/post/control."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.post.control.simulation import simulate
from tests.post.control.test_controller import FAILURES

pytestmark = pytest.mark.soak

SEEDS_PER_TEST = 1000


@pytest.mark.parametrize("first", range(2000, 12000, SEEDS_PER_TEST))
def test_what_must_hold_does_in_many_more_histories(first: int) -> None:
    failures = [result.failure for result in map(simulate, range(first, first + SEEDS_PER_TEST)) if result.failure]
    assert failures == []


@pytest.mark.parametrize("bound", [1, 2, 5, 50])
def test_no_token_is_older_than_the_bound_in_ten_thousand_steps(bound: int) -> None:
    config = replace(FAILURES.config, bound=bound)
    scenario = replace(FAILURES, config=config, num_steps=10_000, delays=0.02)
    result = simulate(replace(scenario, process_kills=0.002, kills_at_commands=0.0001))  # each reads a log that grows
    assert (result.failure, result.num_steps) == ("", 10_000)
    assert result.max_lag <= bound
