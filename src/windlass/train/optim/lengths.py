"""Lengths of training in steps and tokens; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from windlass.core.errors import Problem, SpecError
from windlass.train.duration import Duration

__all__ = ["Rates", "Unit", "convert"]

Unit: TypeAlias = Literal["steps", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What turns one unit of duration into another; None where nobody knows.

    Attributes:
        batch_tokens: tokens of a batch as the recipe names it; a batch that grows later does not change it.
        batches_per_epoch: batches of that size in a pass over the data, which may end amid one.
    """

    batch_tokens: int | None = None
    batches_per_epoch: float | None = None


def convert(length: Duration, unit: Unit, rates: Rates) -> float:
    """A length in another unit.

    Raises:
        SpecError: the rate that it takes is not known.
    """
    if length.unit == unit or length.value == 0:
        return float(length.value)
    steps = float(length.value)
    if length.unit == "epochs":
        steps *= _known(rates.batches_per_epoch, length, unit, "batches of an epoch")
    elif length.unit == "tokens":
        return length.value / _known(rates.batch_tokens, length, unit, "tokens of a batch")
    return steps if unit == "steps" else steps * _known(rates.batch_tokens, length, unit, "tokens of a batch")


def _known(rate: float | None, length: Duration, unit: str, what: str) -> float:
    if rate is None:
        message = f"{length} cannot be counted in {unit}: the {what} are not known"
        hint = "write all lengths of the schedule and of the run in one unit, steps or tokens"
        raise SpecError([Problem(message, "mixed-durations", None, hint)])
    return rate
