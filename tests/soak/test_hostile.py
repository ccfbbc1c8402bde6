"""A hundred thousand mutated frames and files; see tests/hostile. A seed replays with WINDLASS_SEED=NAME:NUMBER there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.targets import TARGETS, Bench

pytestmark = pytest.mark.soak

NUM_ALL = 100_000
NUM_SLOW = 1000
SLOW = ("replicas", "strangers", "plan.json", "provenance.json", "retention.json", "import.json", "journal")
"""They go through sockets and whole homes: a tenth of a second each."""


def test_a_hundred_thousand_documents(tmp_path: Path, home: Path, evidence: Callable[[str, str], None]) -> None:
    bench = Bench(tmp_path / "bench")
    quick = [name for name in TARGETS if name not in SLOW]
    num_quick = (NUM_ALL - NUM_SLOW * len(SLOW)) // len(quick) + 1
    lines, problems = [], []
    try:
        for name in TARGETS:
            number = NUM_SLOW if name in SLOW else num_quick
            found = [problem for seed in range(10_000, 10_000 + number) if (problem := bench.try_one(name, seed))]
            problems += found
            lines.append(f"{name:<18}{number:>8} documents {len(found):>4} problems")
    finally:
        bench.close()
    evidence("hostile", "\n".join(lines))
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:50])
