"""Checks of a schedule against the length of the run; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core.errors import SpecError
from windlass.train.duration import Duration
from windlass.train.optim.schedule_config import (
    ConstantConfig,
    InverseSqrtConfig,
    PartConfig,
    PowerConfig,
    ScheduleConfig,
    SequentialConfig,
    WSDConfig,
    WSDSConfig,
)
from windlass.train.optim.schedules import Rates, Unit, convert

if TYPE_CHECKING:
    from windlass.config.annotations import Diagnostic

__all__ = ["schedule_findings"]


def schedule_findings(
    schedule: ScheduleConfig, duration: Duration, batch_tokens: int | None, path: str = "schedule"
) -> Iterator[Diagnostic]:
    """Yield a problem for each part of a schedule that exceeds its length; lengths in epochs need the data.

    Args:
        path: path of the schedule, for the diagnostics.
    """
    rates = Rates(batch_tokens=batch_tokens)
    if isinstance(schedule, SequentialConfig):
        yield from _sequential(schedule, duration, rates, path)
        return
    if isinstance(schedule, WSDSConfig):
        yield from _periods(schedule, duration, rates, path)
        return
    over = getattr(schedule, "over", None)
    yield from _parts(schedule, over or duration, "`over`" if over else "the run", rates, path)


def _sequential(schedule: SequentialConfig, duration: Duration, rates: Rates, path: str) -> Iterator[Diagnostic]:
    for place, part in enumerate(schedule.parts):
        over = getattr(part, "over", None)
        if over is not None:
            message = f"{over} for a part of a sequence; its length is set in `lengths`"
            yield f"{path}.parts.{place}.over", message, "invalid-value", "remove `over`"
        if place < len(schedule.lengths):
            yield from _parts(part, schedule.lengths[place], "the part", rates, f"{path}.parts.{place}")
    sizes = [_length(length, duration, rates) for length in schedule.lengths]
    total = _length(duration, duration, rates)
    known = [size for size in sizes if size is not None]
    if total is not None and len(known) == len(sizes) and known and sum(known) >= total:
        message = f"the parts before the last fill the whole run of {duration}"
        yield f"{path}.lengths", message, "invalid-schedule", "shorten them, or raise `duration`"


def _periods(schedule: WSDSConfig, duration: Duration, rates: Rates, path: str) -> Iterator[Diagnostic]:
    total = _length(duration, duration, rates)
    sizes = [_length(period, duration, rates) for period in schedule.periods]
    warmup = _length(schedule.warmup, duration, rates)
    decay = None if schedule.decay is None else _length(schedule.decay, duration, rates)
    for place, size in enumerate(sizes):
        if size is None or warmup is None:
            continue
        falls = decay if schedule.decay_share is None else size * schedule.decay_share
        before = 0.0 if place else warmup
        if falls is not None and before + falls > size:
            what = "the warm-up and the decay do" if before else "the decay does"
            message = f"{what} not fit into a period of {schedule.periods[place]}"
            yield f"{path}.periods.{place}", message, "invalid-schedule", "make the period longer"
    known = [size for size in sizes if size is not None]
    if total is None or len(known) != len(sizes):
        return
    if sum(known) > total:
        message = f"the periods are longer than the run of {duration}"
        yield f"{path}.periods", message, "invalid-schedule", "shorten them, or raise `duration`"
    elif sum(known) < total and not schedule.final:
        message = f"the periods end before the run of {duration}; the rate is 0 from there on"
        yield f"{path}.periods", message, "invalid-value", "add a period, or lower `duration`"


def _parts(
    schedule: PartConfig | WSDConfig,
    length: Duration,
    what: str,
    rates: Rates,
    path: str,
) -> Iterator[Diagnostic]:
    total, warmup = _length(length, length, rates), _length(schedule.warmup, length, rates)
    if total is None or warmup is None:
        return
    if warmup > total and not isinstance(schedule, (ConstantConfig, InverseSqrtConfig)):
        message = f"a warm-up of {schedule.warmup} is longer than {what} of {length}"
        yield f"{path}.warmup", message, "invalid-schedule", "shorten the warm-up"
    elif isinstance(schedule, (WSDConfig, PowerConfig)) and schedule.decay is not None:
        decay = _length(schedule.decay, length, rates)
        if decay is not None and warmup + decay > total:
            with_warmup = f" after a warm-up of {schedule.warmup}" if warmup else ""
            message = f"a decay of {schedule.decay}{with_warmup} does not fit into {what} of {length}"
            yield f"{path}.decay", message, "invalid-schedule", "shorten the decay"


def _length(length: Duration, like: Duration, rates: Rates) -> float | None:
    """Return a length in the unit of `like`, or None if that requires the data."""
    if length.unit == like.unit:
        return float(length.value)
    unit: Unit = "tokens" if like.unit == "tokens" else "steps"
    if like.unit == "epochs":
        return None
    try:
        return convert(length, unit, rates)
    except SpecError:
        return None
