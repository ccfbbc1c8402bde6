"""What is wrong with a schedule in a run of a certain length; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core.errors import SpecError
from windlass.train.duration import Duration
from windlass.train.optim.config import (
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    LinearConfig,
    ScheduleConfig,
    SequentialConfig,
    WSDConfig,
)
from windlass.train.optim.lengths import Rates, Unit, convert

if TYPE_CHECKING:
    from windlass.config import Finding

__all__ = ["schedule_findings"]


def schedule_findings(
    schedule: ScheduleConfig, duration: Duration, batch_tokens: int | None, path: str = "schedule"
) -> Iterator[Finding]:
    """Parts of a schedule that do not fit into its length; lengths in epochs are known only with the data at hand.

    Args:
        path: of the schedule, which the findings name.
    """
    rates = Rates(batch_tokens=batch_tokens)
    if isinstance(schedule, SequentialConfig):
        yield from _sequential(schedule, duration, rates, path)
        return
    over = getattr(schedule, "over", None)
    yield from _parts(schedule, over or duration, "`over`" if over else "the run", rates, path)


def _sequential(schedule: SequentialConfig, duration: Duration, rates: Rates, path: str) -> Iterator[Finding]:
    for place, part in enumerate(schedule.parts):
        if isinstance(part, (CosineConfig, LinearConfig)) and part.over is not None:
            message = f"{part.over} for a part of a sequence, whose length stands in `lengths`"
            yield f"{path}.parts.{place}.over", message, "wrong-value", "leave out `over`"
        if place < len(schedule.lengths):
            yield from _parts(part, schedule.lengths[place], "the part", rates, f"{path}.parts.{place}")
    sizes = [_length(length, duration, rates) for length in schedule.lengths]
    total = _length(duration, duration, rates)
    known = [size for size in sizes if size is not None]
    if total is not None and len(known) == len(sizes) and known and sum(known) >= total:
        message = f"the parts before the last take the whole run of {duration}"
        yield f"{path}.lengths", message, "schedule-too-long", "shorten them, or raise `duration`"


def _parts(
    schedule: ConstantConfig | CosineConfig | LinearConfig | WSDConfig | InverseSqrtConfig,
    length: Duration,
    what: str,
    rates: Rates,
    path: str,
) -> Iterator[Finding]:
    total, warmup = _length(length, length, rates), _length(schedule.warmup, length, rates)
    if total is None or warmup is None:
        return
    if warmup > total and not isinstance(schedule, (ConstantConfig, InverseSqrtConfig)):
        message = f"a warm-up of {schedule.warmup} is longer than {what} of {length}"
        yield f"{path}.warmup", message, "schedule-too-long", "shorten the warm-up"
    elif isinstance(schedule, WSDConfig):
        decay = _length(schedule.decay, length, rates)
        if decay is not None and warmup + decay > total:
            with_warmup = f" after a warm-up of {schedule.warmup}" if warmup else ""
            message = f"a decay of {schedule.decay}{with_warmup} does not fit into {what} of {length}"
            yield f"{path}.decay", message, "schedule-too-long", "shorten the decay"


def _length(length: Duration, like: Duration, rates: Rates) -> float | None:
    """In the unit of `like`; None where that takes the data. Epochs compare with epochs."""
    if length.unit == like.unit:
        return float(length.value)
    unit: Unit = "tokens" if like.unit == "tokens" else "steps"
    if like.unit == "epochs":
        return None
    try:
        return convert(length, unit, rates)
    except SpecError:
        return None
