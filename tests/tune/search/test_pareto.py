from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.tune.search import Objectives
from windlass.tune.search.pareto import crowding, fronts, hypervolume, is_better, losses, pareto_front

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=20)


@given(POINTS)
def test_the_front_is_what_no_other_beats(points: list[tuple[int, ...]]) -> None:
    expected = [i for i, one in enumerate(points) if not any(is_better(other, one) for other in points)]
    assert pareto_front(points) == expected
    sorted_out = fronts(points)
    assert (sorted_out[0] if sorted_out else []) == expected
    assert sorted(itertools.chain(*sorted_out)) == list(range(len(points)))
    for before, after in itertools.pairwise(sorted_out):
        assert all(any(is_better(points[i], points[j]) for i in before) for j in after)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_the_hypervolume_is_the_number_of_cells(points: list[tuple[int, ...]]) -> None:
    cells = itertools.product(range(6), repeat=3)
    counted = sum(any(all(p <= c for p, c in zip(point, cell, strict=True)) for point in points) for cell in cells)
    assert hypervolume(points, (6, 6, 6)) == counted


def test_hypervolume_in_one_two_and_four_goals() -> None:
    assert hypervolume([(1.0,), (3.0,)], (4.0,)) == 3
    assert hypervolume([(0.0, 2.0), (1.0, 1.0), (2.0, 0.0), (5.0, 5.0)], (3.0, 3.0)) == 6
    assert hypervolume([(0, 0, 0, 0)], (1, 2, 3, 4)) == 24
    assert hypervolume([], (1.0, 1.0)) == 0


def test_hypervolume_agrees_with_optunas() -> None:
    import numpy as np
    from optuna._hypervolume import compute_hypervolume

    chance = random.Random(1)
    for _ in range(20):
        points = [tuple(chance.random() for _ in range(3)) for _ in range(12)]
        assert hypervolume(points, (1, 1, 1)) == pytest.approx(compute_hypervolume(np.array(points), np.ones(3)))


def test_losses_turn_what_is_to_grow() -> None:
    objectives = Objectives(metrics=("a", "b"), is_max=(False, True))
    assert losses(objectives, {"a": 1, "b": 2}) == (1.0, -2.0)
    assert losses(objectives, {"a": 1}) is None
    assert losses(objectives, {"a": 1, "b": math.nan}) is None


def test_the_ends_of_a_front_are_lonely() -> None:
    assert crowding([(0, 4), (1, 2), (2, 1), (4, 0)]) == [math.inf, 2 / 4 + 3 / 4, 3 / 4 + 2 / 4, math.inf]
