"""Same decisions as Ray Tune: its own scheduler objects and ours get the same random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tests.tune.schedulers.differential.cases import CASES
from tests.tune.schedulers.differential.match import Differs, play


@pytest.mark.parametrize("name", CASES)
def test_every_decision_is_that_of_ray(name: str, need: Callable[[str], None]) -> None:
    need("ray")
    compare(name, range(10))


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_every_decision_is_that_of_ray_in_10_000_streams(name: str, need: Callable[[str], None]) -> None:
    need("ray")
    compare(name, range(1_000_000, 1_010_000))


def compare(name: str, seeds: range) -> Counter[str]:
    """Play the streams of these seeds; a stream that differs names itself. Returns how often what was said."""
    said: Counter[str] = Counter()
    for seed in seeds:
        ours, rays, habits = CASES[name](seed)
        try:
            trace = play(ours, rays, habits, Random(seed))
        except Differs as error:
            pytest.fail(f"{name}, seed {seed}: {error}")
        said.update(str(row[0]) + (f" {row[-2]}" if row[0] == "report" else "") for row in trace)
        said.update(act[0] for act in ours.sweep.acts)
    assert said["report continue"] or said["report pause"]
    return said
