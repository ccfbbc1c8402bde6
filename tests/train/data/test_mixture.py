from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import SpecError
from windlass.train.data.mixture import rows_of_epoch


def rows(
    sizes: list[int], ratios: list[float | None], repeats: list[float] | None = None, total: int | None = None
) -> list[int]:
    names = [f"s{number}" for number in range(len(sizes))]
    return rows_of_epoch(sizes, ratios, repeats or [4.0] * len(sizes), names=names, total=total)


def test_without_ratios_each_row_comes_once() -> None:
    assert rows([5, 7, 10**15 + 1], [None] * 3) == [5, 7, 10**15 + 1]


def test_ratios_are_relative() -> None:
    assert rows([60, 40], [3.0, 1.0]) == [75, 25]
    assert rows([60, 40], [0.3, 0.1], total=40) == [30, 10]


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0.01, 10)), min_size=1, max_size=6),
    st.integers(1, 100_000),
)
def test_shares_add_up_and_are_as_near_as_whole_numbers_can(sources: list[tuple[int, float]], total: int) -> None:
    sizes, ratios = [size for size, _ in sources], [ratio for _, ratio in sources]
    found = rows(sizes, list(ratios), [1e9] * len(sizes), total)
    assert sum(found) == total
    for count, ratio in zip(found, ratios, strict=True):
        assert abs(count - total * ratio / sum(ratios)) < 1 + 1e-6


def test_a_share_that_cannot_be_had_names_the_source_and_the_largest() -> None:
    with pytest.raises(SpecError) as caught:
        rows([10, 990], [0.5, 0.5])
    problem = caught.value.problems[0]
    assert problem.code == "data-too-small"
    assert problem.message == (
        "s0 would repeat 50 times in an epoch for its share of 0.5, but its `max_repeats` of 4 allows a share of 0.04"
    )
    assert rows([10, 990], [0.04, 0.96]) == [40, 960]


def test_all_sources_that_are_empty_are_told() -> None:
    with pytest.raises(SpecError) as caught:
        rows([0, 5, 0], [None] * 3)
    assert [problem.message for problem in caught.value.problems] == [
        "s0 does not fill one row",
        "s2 does not fill one row",
    ]
