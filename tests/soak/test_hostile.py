"""Two hundred thousand damaged documents; see tests/hostile. A seed replays with WINDLASS_SEED=NAME:NUMBER there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.hostile.programs import PROGRAMS
from tests.hostile.sweeps import SWEEPS
from tests.hostile.targets import TARGETS, Bench
from tests.hostile.trying import try_one
from tests.hostile.weights import WEIGHTS

pytestmark = pytest.mark.soak

NUM_ALL = 100_000
NUM_SLOW = 1000
SLOW = ("replicas", "strangers", "plan.json", "provenance.json", "retention.json", "import.json", "journal")
"""They go through sockets and whole homes: a tenth of a second each."""

ANSWERS = {**PROGRAMS, **SWEEPS, **WEIGHTS}
NUM_MANY = 1000
MANY_FILES = ("sweep spool", "sweep journal", "shipped folders", "imported archive", "logins", *WEIGHTS)
"""They copy models, or make folders: ten milliseconds each."""


def test_two_hundred_thousand_documents(tmp_path: Path, home: Path, evidence: Callable[[str, str], None]) -> None:
    bench = Bench(tmp_path / "bench")
    lines: list[str] = []
    problems: list[str] = []

    def look(name: str, number: int, try_seed: Callable[[int], str]) -> None:
        found = [problem for seed in range(10_000, 10_000 + number) if (problem := try_seed(seed))]
        problems.extend(found)
        lines.append(f"{name:<18}{number:>8} documents {len(found):>4} problems")

    try:
        for name, number in numbers(TARGETS, SLOW, NUM_SLOW).items():
            look(name, number, partial(bench.try_one, name))
    finally:
        bench.close()
    for name, number in numbers(ANSWERS, MANY_FILES, NUM_MANY).items():
        look(name, number, partial(try_one, ANSWERS, name, folder=tmp_path / name.replace(" ", "-")))
    evidence("hostile", "\n".join(lines))
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:50])


def numbers(names: Iterable[str], slow: Sequence[str], num_slow: int) -> dict[str, int]:
    """How often each is tried, so that it is 100,000 times in all."""
    quick = [name for name in names if name not in slow]
    num_quick = (NUM_ALL - num_slow * len(slow)) // len(quick) + 1
    return {name: num_slow if name in slow else num_quick for name in names}
