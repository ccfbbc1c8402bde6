"""Lengths against what is done."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from windlass.train.duration import Duration
from windlass.train.progress import is_due, is_reached


@dataclass(frozen=True)
class At:
    step: int = 0
    tokens: int = 0
    epoch: int = 0


@pytest.mark.parametrize(
    ("length", "at", "is_there"),
    [
        (Duration.steps(3), At(step=2), False),
        (Duration.steps(3), At(step=3), True),
        (Duration.tokens(100), At(step=9, tokens=99), False),
        (Duration.tokens(100), At(tokens=128), True),
        (Duration.epochs(1), At(step=50), False),
        (Duration.epochs(1), At(epoch=1), True),
    ],
)
def test_a_length_is_reached(length: Duration, at: At, is_there: bool) -> None:
    assert is_reached(length, at) is is_there


@pytest.mark.parametrize(
    ("every", "before", "after", "is_now"),
    [
        (Duration.steps(10), At(step=9), At(step=10), True),
        (Duration.steps(10), At(step=10), At(step=11), False),
        (Duration.tokens(1000), At(tokens=900), At(tokens=1100), True),
        (Duration.tokens(1000), At(tokens=1100), At(tokens=1900), False),
        (Duration.epochs(1), At(epoch=0), At(epoch=1), True),
        (Duration.steps(0), At(step=3), At(step=4), True),
    ],
)
def test_a_multiple_is_due_once(every: Duration, before: At, after: At, is_now: bool) -> None:
    assert is_due(every, before, after) is is_now
