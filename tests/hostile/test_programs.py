"""Answers of other programs and models of others, a thousand times damaged; `WINDLASS_SEED=NAME:NUMBER` replays one.

100,000 more are in tests/soak.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hostile.programs import PROGRAMS
from tests.hostile.sweeps import SWEEPS
from tests.hostile.trying import try_one
from tests.hostile.weights import WEIGHTS

TARGETS = {**PROGRAMS, **SWEEPS, **WEIGHTS}
NUM_EACH = 1000 // len(TARGETS) + 1


@pytest.mark.parametrize("name", TARGETS)
def test_no_answer_breaks_its_reader(tmp_path: Path, name: str) -> None:
    wanted, _, seed = os.environ.get("WINDLASS_SEED", "").partition(":")
    seeds = range(NUM_EACH) if not wanted else [int(seed)] if wanted == name else []
    problems = [problem for seed in seeds if (problem := try_one(TARGETS, name, int(seed), tmp_path / "in"))]
    assert not problems, f"{len(problems)} of {len(seeds)}:\n" + "\n".join(problems[:20])
