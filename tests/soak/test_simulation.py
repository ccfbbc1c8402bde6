"""Ten times the histories of tests/sim, with other seeds."""

from __future__ import annotations

import pytest

from tests.sim import simulate

pytestmark = pytest.mark.soak

SEEDS_PER_TEST = 1000


@pytest.mark.parametrize("first", range(2000, 22000, SEEDS_PER_TEST))
def test_the_shipped_policies_hold_in_many_more_histories(first: int) -> None:
    results = (simulate(seed) for seed in range(first, first + SEEDS_PER_TEST))
    failures = [f"{result.failure}\n    {result.replay_command}" for result in results if result.failure]
    assert failures == [], "\n".join(failures)
