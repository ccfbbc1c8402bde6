"""Learning-rate schedules as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, Range
from windlass.train.duration import Duration
from windlass.train.targets.config import TargetConfig

__all__ = [
    "AnySchedule",
    "ConstantConfig",
    "CosineConfig",
    "ExponentialConfig",
    "HalfCosineConfig",
    "InverseSqrtConfig",
    "LinearConfig",
    "PartConfig",
    "PowerConfig",
    "ScheduleConfig",
    "ScheduleTarget",
    "SequentialConfig",
    "WSDConfig",
    "WSDSConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    warmup: Annotated[Duration, Doc("Linear rise from `warmup_from` to the peak.")] = Duration(value=0, unit="steps")
    warmup_from: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the start.")] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantConfig(_Warm):
    """Constant learning rate after the warm-up."""

    kind: Literal["constant"] = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineConfig(_Warm):
    """Half a cosine from the peak down to `final` times the peak."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the end.")] = 0.1
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearConfig(_Warm):
    """Straight line from the peak down to `final` times the peak."""

    kind: Literal["linear"] = "linear"
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the end.")] = 0.0
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WSDConfig(_Warm):
    """Warm-up, stable, decay. Source: Hu et al. 2024, "MiniCPM", section 4."""

    kind: Literal["wsd"] = "wsd"
    decay: Annotated[Duration, Doc("Length of the decay at the end.")]
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the end.")] = 0.0
    shape: Annotated[Literal["linear", "cosine", "sqrt"], Doc("Shape of the decay.")] = "linear"
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrtConfig(_Warm):
    """Peak times sqrt(warm-up / step)."""

    kind: Literal["inverse-sqrt"] = "inverse-sqrt"

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.warmup.value == 0:
            yield "warmup", "the schedule is 0 without a warm-up", "invalid-value", "set `warmup`"


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfCosineConfig(_Warm):
    """Second half of a cosine: from halfway between the peak and `final` down to `final`."""

    kind: Literal["half-cosine"] = "half-cosine"
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the end.")] = 0.1
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialConfig(_Warm):
    """Constant factor per step from `begin` to `final`; the rate can also rise, as in a range test."""

    kind: Literal["exponential"] = "exponential"
    begin: Annotated[float, Range(above=0, max=1), Doc("Fraction of the peak after the warm-up.")] = 1.0
    final: Annotated[float, Range(above=0, max=1), Doc("Fraction of the peak at the end.")] = 0.01
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConfig(_Warm):
    """Peak times (position / warm-up) ** exponent, then a linear decay. Source: Shen et al. 2024, "Power scheduler"."""

    kind: Literal["power"] = "power"
    exponent: Annotated[float, Range(max=0), Doc("Exponent, below zero; lower values decay faster.")] = -0.51
    decay: Annotated[Duration | None, Doc("Length of a linear decay at the end; if null, there is none.")] = None
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak after the decay.")] = 0.0
    over: Annotated[Duration | None, Doc("Length of the schedule; if null, the run's `duration`.")] = None

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.warmup.value == 0:
            yield "warmup", "the schedule is undefined without a warm-up", "invalid-value", "set `warmup`"
        if self.final and self.decay is None:
            message = f"`final` {self.final} is set without a decay"
            yield "final", message, "setting-unused", "set `decay`, or remove `final`"


@dataclass(frozen=True, slots=True, kw_only=True)
class WSDSConfig(_Warm):
    """Several periods, each stable and then decaying to `final`; the next one starts at the peak again.

    Each period ends with a usable model, from which the next one continues. Source: Wen et al. 2024,
    "Understanding warmup-stable-decay learning rates", section 4 (WSD-S).
    """

    kind: Literal["wsd-s"] = "wsd-s"
    periods: Annotated[tuple[Duration, ...], Doc("Lengths of the periods; the warm-up is in the first.")]
    decay: Annotated[Duration | None, Doc("Length of the decay at the end of each period.")] = None
    decay_share: Annotated[
        float | None,
        Range(above=0, max=1),
        Doc("Length of the decay as a fraction of each period, instead of `decay`."),
    ] = None
    peaks: Annotated[
        tuple[float, ...], Doc("Peak of each period, as a fraction of the schedule's peak; if empty, 1.")
    ] = ()
    final: Annotated[float, Range(min=0, max=1), Doc("Fraction of the peak at the end of each period.")] = 0.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if not self.periods:
            yield "periods", "no periods", "invalid-value", "write lengths such as [1000steps, 2000steps]"
        for place, period in enumerate(self.periods):
            if not period.value:
                yield f"periods.{place}", "this period has length 0", "invalid-value", "set a length, or remove it"
        if (self.decay is None) == (self.decay_share is None):
            both = "both `decay` and `decay_share` are set" if self.decay else "the periods have no decay"
            yield "decay", both, "invalid-value", "give one of `decay` and `decay_share`"
        if self.peaks and len(self.peaks) != len(self.periods):
            message = f"{len(self.peaks)} peaks for {len(self.periods)} periods"
            yield "peaks", message, "invalid-value", f"write {len(self.periods)}, or remove them"
        for place, peak in enumerate(self.peaks):
            if not self.final < peak:
                message = f"a peak of {peak} is not above the final value {self.final}"
                yield f"peaks.{place}", message, "invalid-value", f"set a value above {self.final}"


PartConfig: TypeAlias = (
    ConstantConfig
    | CosineConfig
    | HalfCosineConfig
    | LinearConfig
    | ExponentialConfig
    | PowerConfig
    | InverseSqrtConfig
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialConfig:
    """Schedules in sequence, each of which starts when the previous one ends."""

    kind: Literal["sequential"] = "sequential"
    parts: Annotated[tuple[PartConfig, ...], Doc("Schedules to run in sequence.")]
    lengths: Annotated[tuple[Duration, ...], Doc("Lengths of all parts except the last.")]

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        num_parts, num_lengths = len(self.parts), len(self.lengths)
        if not num_parts:
            yield "parts", "no parts", "invalid-value", "list one schedule or more"
        elif num_lengths != num_parts - 1:
            message = f"{num_lengths} lengths for {num_parts} parts"
            yield "lengths", message, "invalid-value", f"write {num_parts - 1}: the last part lasts to the run's end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTarget(TargetConfig):
    """Your own schedule: a function of the step that returns a fraction of the peak."""


ScheduleConfig: TypeAlias = PartConfig | WSDConfig | WSDSConfig | SequentialConfig
AnySchedule: TypeAlias = ScheduleConfig | ScheduleTarget
