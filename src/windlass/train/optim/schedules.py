"""Learning-rate schedules as pure functions of the position in training; importable without torch.

The first step is number 1 and takes the factor at position 1, so no step is spent at a rate of zero and the last step of
a cosine to zero is the only one without an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from windlass.core.errors import Problem, SpecError
from windlass.train.duration import Duration
from windlass.train.optim.schedule_config import (
    ConstantConfig,
    CosineConfig,
    ExponentialConfig,
    HalfCosineConfig,
    InverseSqrtConfig,
    LinearConfig,
    PartConfig,
    PowerConfig,
    ScheduleConfig,
    SequentialConfig,
    WSDConfig,
    WSDSConfig,
)

__all__ = ["Rates", "ScheduleStep", "Unit", "convert", "curve", "lr_factor", "schedule_function"]

Unit: TypeAlias = Literal["steps", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Conversion rates between steps, tokens and epochs; a rate is None if unknown.

    Attributes:
        batch_tokens: tokens of the recipe's batch; not changed by a batch that grows later.
        batches_per_epoch: batches of that size in a pass over the data, including fractions.
    """

    batch_tokens: int | None = None
    batches_per_epoch: float | None = None


def convert(length: Duration, unit: Unit, rates: Rates) -> float:
    """Convert a length to another unit.

    Raises:
        SpecError: the required rate is unknown.
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
        message = f"{length} cannot be converted to {unit}: unknown {what}"
        hint = "write all lengths of the schedule and of the run in one unit, steps or tokens"
        raise SpecError([Problem(message, "invalid-schedule", None, hint)])
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleStep:
    """Position in training at which a schedule is evaluated.

    Attributes:
        step: number of the next step, from 1.
        tokens: tokens of all steps, including that one.
    """

    step: int
    tokens: int = 0
    rates: Rates = Rates()


def lr_factor(schedule: ScheduleConfig, at: ScheduleStep, duration: Duration) -> float:
    """Return the fraction of the peak learning rate at the position `at`.

    Args:
        duration: length of the run, the end of schedules without `over`. Positions are counted in its unit, or in that
            of `over`; `at.rates` converts other lengths to it.

    Raises:
        SpecError: lengths have units that cannot be converted.
    """
    unit, total = _reckon(_length(schedule, duration), at.rates)
    position = float(at.step if unit == "steps" else at.tokens)
    if isinstance(schedule, SequentialConfig):
        return _sequential(schedule, position, total, unit, at.rates)
    if isinstance(schedule, WSDSConfig):
        return _periods(schedule, position, unit, at.rates)
    return _factor(schedule, position, total, unit, at.rates)


def schedule_function(schedule: ScheduleConfig, duration: Duration, rates: Rates) -> Callable[[int, int], float]:
    """Return a function from step and tokens to a fraction of the peak learning rate.

    Raises:
        SpecError: lengths have units that cannot be converted.
    """
    lr_factor(schedule, ScheduleStep(step=1, rates=rates), duration)
    return lambda step, tokens: lr_factor(schedule, ScheduleStep(step=step, tokens=tokens, rates=rates), duration)


def _length(schedule: ScheduleConfig, duration: Duration) -> Duration:
    """Return the length against which positions are measured, or the warm-up of a schedule without an end."""
    match schedule:
        case SequentialConfig() | WSDSConfig():
            return duration
        case ConstantConfig() | InverseSqrtConfig():
            return schedule.warmup
        case _:
            return schedule.over or duration


def _reckon(length: Duration, rates: Rates) -> tuple[Unit, float]:
    """Return the unit for positions and the length in that unit; epochs become tokens if possible."""
    unit: Unit = "tokens" if length.unit == "tokens" or (length.unit == "epochs" and rates.batch_tokens) else "steps"
    return unit, convert(length, unit, rates)


def _sequential(schedule: SequentialConfig, position: float, total: float, unit: Unit, rates: Rates) -> float:
    begin = 0.0
    for part, length in zip(schedule.parts, schedule.lengths, strict=False):
        size = convert(length, unit, rates)
        if position <= begin + size:
            return _factor(part, position - begin, size, unit, rates)
        begin += size
    return _factor(schedule.parts[-1], position - begin, max(0.0, total - begin), unit, rates)


def _periods(schedule: WSDSConfig, position: float, unit: Unit, rates: Rates) -> float:
    """Return the learning rate factor at a position.

    The last step of a period is its end, and the next step starts the next period at its peak.
    """
    warmup, begin = convert(schedule.warmup, unit, rates), 0.0
    for number, period in enumerate(schedule.periods):
        length = convert(period, unit, rates)
        if position <= begin + length:
            peak = schedule.peaks[number] if schedule.peaks else 1.0
            if position < warmup:
                return _rise(schedule, position, warmup, peak)
            decay = length * schedule.decay_share if schedule.decay_share is not None else 0.0
            if schedule.decay is not None:
                decay = convert(schedule.decay, unit, rates)
            share = _share(position - (begin + length - decay), decay)
            return peak + (schedule.final - peak) * share
        begin += length
    return schedule.final


def _rise(schedule: PartConfig | WSDConfig | WSDSConfig, position: float, warmup: float, peak: float = 1.0) -> float:
    return schedule.warmup_from + (peak - schedule.warmup_from) * position / warmup


def _factor(schedule: PartConfig | WSDConfig, position: float, total: float, unit: Unit, rates: Rates) -> float:
    warmup = convert(schedule.warmup, unit, rates)
    if position < warmup:
        top = 0.5 * (1.0 + schedule.final) if isinstance(schedule, HalfCosineConfig) else 1.0
        return _rise(schedule, position, warmup, top)
    share = _share(position - warmup, total - warmup)
    match schedule:
        case ConstantConfig():
            return 1.0
        case InverseSqrtConfig():
            return math.sqrt(warmup / position)
        case CosineConfig():
            return _fall("cosine", schedule.final, share)
        case HalfCosineConfig():
            return _fall("cosine", schedule.final, 0.5 + 0.5 * share)
        case ExponentialConfig():
            return float(schedule.begin * (schedule.final / schedule.begin) ** share)
        case PowerConfig():
            return _power(schedule, position, total, unit, rates)
        case LinearConfig():
            return _fall("linear", schedule.final, share)
        case WSDConfig():
            decay = convert(schedule.decay, unit, rates)
            return _fall(schedule.shape, schedule.final, _share(position - (total - decay), decay))
        case _:
            assert_never(schedule)


def _power(schedule: PowerConfig, position: float, total: float, unit: Unit, rates: Rates) -> float:
    warmup = convert(schedule.warmup, unit, rates)
    decay = 0.0 if schedule.decay is None else convert(schedule.decay, unit, rates)
    end = position if schedule.decay is None else total - decay
    reached = float((min(position, end) / warmup) ** schedule.exponent)
    return reached + (schedule.final - reached) * _share(position - end, decay)


def _share(done: float, length: float) -> float:
    if length <= 0:
        return 1.0 if done > 0 else 0.0
    return min(1.0, max(0.0, done / length))


def _fall(shape: str, final: float, share: float) -> float:
    """Return the decay from 1 at share 0 to `final` at share 1.

    Source of sqrt: Hagele et al. 2024, "Scaling laws beyond fixed training durations", equation 2.
    """
    if shape == "cosine":
        left = 0.5 * (1.0 + math.cos(math.pi * share))
    elif shape == "sqrt":
        left = 1.0 - math.sqrt(share)
    else:
        left = 1.0 - share
    return final + (1.0 - final) * left


def curve(schedule: ScheduleConfig, duration: Duration, rates: Rates, steps: Sequence[int]) -> list[float]:
    """Return the factor at some steps with a constant batch size, for plans and plots."""
    batch = rates.batch_tokens or 0
    return [lr_factor(schedule, ScheduleStep(step=step, tokens=step * batch, rates=rates), duration) for step in steps]
