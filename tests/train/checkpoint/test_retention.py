from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.checkpoint.listing import to_remove
from windlass.train.checkpoint.protocol import Committed


def one(step: int, *, is_permanent: bool = True) -> Committed:
    return Committed(path=f"step-{step}", step=step, tokens=step, is_permanent=is_permanent)


@pytest.mark.parametrize(
    ("keep", "steps", "gone"),
    [
        (None, "1p 2e 3p 4e", [2, 4]),
        (1, "1p 2e 3p 4e", [1, 2, 3, 4]),
        (2, "1p 2e 3p 4e", [1, 2, 4]),
        (3, "1p 2e 3p 4e", [2, 4]),
        (1, "", []),
        (1, "1p 9p", [1]),
    ],
)
def test_rules_with_a_permanent_newest(keep: int | None, steps: str, gone: list[int]) -> None:
    found = [one(int(word[:-1]), is_permanent=word[-1] == "p") for word in steps.split()]
    assert [item.step for item in to_remove([*found, one(5)], one(5), keep=keep)] == gone


def test_an_ephemeral_newest_does_not_count_as_kept() -> None:
    found = [one(1), one(2), one(3, is_permanent=False)]
    assert [item.step for item in to_remove(found, one(4, is_permanent=False), keep=1)] == [1, 3]


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), unique_by=lambda item: item[0]), st.integers(1, 5))
def test_the_newest_and_enough_permanent_ones_stay(items: list[tuple[int, bool]], keep: int) -> None:
    found = [one(step, is_permanent=is_permanent) for step, is_permanent in items]
    newest = one(51)
    gone = {item.step for item in to_remove([*found, newest], newest, keep=keep)}
    stay = [item for item in [*found, newest] if item.step not in gone]
    assert 51 not in gone
    assert all(item.is_permanent for item in stay)
    assert len(stay) == min(keep, 1 + sum(item.is_permanent for item in found))
