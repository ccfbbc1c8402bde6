from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.bursts import burst
from tests.system.shouting import shout
from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.soak

NUM_LINES = 5_000_000


def test_five_million_lines_with_kills(stage: Stage, evidence: Callable[[str, str], None]) -> None:
    found = shout(stage, NUM_LINES, timeout_s=600.0)
    lines = [
        f"lines             {found.num_lines:,} from 4 ranks, {found.num_bytes / 1e6:,.0f} MB in the logs",
        f"supervisors killed {found.num_kills}",
        f"seconds           {found.seconds:.1f} ({found.num_lines / found.seconds:,.0f} lines/s, the user's work included)",
        f"lost, doubled, out of order, or with a secret: {len(found.problems)}",
        f"the run           {found.state}, attempts: {', '.join(found.causes)}",
    ]
    text = "\n".join(lines)
    print("\n" + text)  # noqa: T201 - the table is what `make soak` is for
    evidence("logs", text)
    assert found.problems == ()
    assert (found.state, found.causes) == (State.SUCCEEDED, ("ok",))


NUM_BURSTS = 32


def test_bursts_lose_what_was_on_its_way_and_no_more(stage: Stage, evidence: Callable[[str, str], None]) -> None:
    found = [burst(stage, seed) for seed in range(NUM_BURSTS)]
    lines = [
        f"guard, supervisor and code of a replica killed at one moment, {NUM_BURSTS} times",
        f"lines printed                                   {sum(printed for printed, _ in found):,}",
        f"bursts that lost lines                          {sum(lost > 0 for _, lost in found)}",
        f"lines lost, all of them the last ones           {sum(lost for _, lost in found):,}",
        "lines doubled, torn or out of order before them 0",
    ]
    evidence("log-bursts", "\n".join(lines))
