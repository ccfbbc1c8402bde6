"""Samplers for domains under Ray Tune's names, as `domain.get_sampler()` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Grid", "LogUniform", "Normal", "Quantized", "Sampler", "Uniform", "sampler_of"]


class Sampler:
    """Base class for samplers."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Uniform(Sampler):
    """Sampler for equally likely values."""


@dataclass(frozen=True, slots=True)
class LogUniform(Sampler):
    """Sampler for values with a uniform logarithm."""


@dataclass(frozen=True, slots=True)
class Grid(Sampler):
    """Sampler that takes each value in turn."""


@dataclass(frozen=True, slots=True)
class Normal(Sampler):
    """Sampler for a normal distribution."""

    mean: float = 0.0
    sd: float = 1.0


@dataclass(frozen=True, slots=True)
class Quantized(Sampler):
    """Sampler that rounds to multiples of `q`."""

    sampler: Sampler
    q: float

    def get_sampler(self) -> Sampler:
        """Return the sampler before rounding."""
        return self.sampler


def sampler_of(domain: Any) -> Sampler:
    """Return the sampler for a domain, given the domain's fields."""
    if getattr(domain, "is_grid", False):
        return Grid()
    plain = (
        Normal(domain.mean, domain.sd)
        if hasattr(domain, "sd")
        else LogUniform()
        if getattr(domain, "is_log", False)
        else Uniform()
    )
    step = getattr(domain, "step", None)
    is_stepped = step is not None and not (step == 1 and isinstance(step, int))
    return Quantized(plain, step) if is_stepped else plain  # type: ignore[arg-type]
