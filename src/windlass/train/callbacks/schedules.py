"""Values that change at moments of training: which one holds where training stands; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from windlass.config import Diagnostic
from windlass.core.phrases import count
from windlass.train.duration import Duration
from windlass.train.progress import Progress, is_reached

__all__ = ["current_value", "moment_findings"]


def current_value(first: int, at: Sequence[Duration], values: Sequence[int], progress: Progress) -> int:
    """The value of the last moment that is reached; `first` before any is."""
    reached = [value for moment, value in zip(at, values, strict=True) if is_reached(moment, progress)]
    return reached[-1] if reached else first


def moment_findings(name: str, at: Sequence[Duration], values: Sequence[int]) -> Iterator[Diagnostic]:
    """What is wrong with moments and their values; `name` is the field of the values."""
    if len(at) != len(values):
        message = f"{count(len(at), 'moment')} for {len(values)} {name}"
        yield "at", message, "wrong-value", f"write as many of `at` as of `{name}`"
    for place, value in enumerate(values):
        if value < 1:
            yield f"{name}.{place}", f"{value} is below 1", "out-of-range", "write a whole number above 0"
    for place, (one, two) in enumerate(pairwise(at), start=1):
        if one.unit == two.unit and two.value <= one.value:
            yield f"at.{place}", f"{two} is not after {one}", "wrong-value", "write moments in the order of time"
