from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.chaos import strike_all, table
from tests.system.stage import Stage

pytestmark = pytest.mark.soak

NUM_MOMENTS = 200
FIRST_SEED = 1000


def test_kills_at_two_hundred_moments(stage: Stage, evidence: Callable[[str, str], None]) -> None:
    outcomes = strike_all(stage, range(FIRST_SEED, FIRST_SEED + NUM_MOMENTS), num_parallel=6)
    text = table(outcomes)
    print("\n" + text)  # noqa: T201 - the table is what `make soak` is for
    evidence("kills", text)
    assert [outcome for outcome in outcomes if outcome.problems] == []
