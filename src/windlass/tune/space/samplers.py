"""How a domain draws, in the words of Ray Tune: `domain.get_sampler()` answers with one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Grid", "LogUniform", "Normal", "Quantized", "Sampler", "Uniform", "sampler_of"]


class Sampler:
    """The base of all."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Uniform(Sampler):
    """Every value is equally likely."""


@dataclass(frozen=True, slots=True)
class LogUniform(Sampler):
    """The logarithm is uniform."""


@dataclass(frozen=True, slots=True)
class Grid(Sampler):
    """Each value in turn."""


@dataclass(frozen=True, slots=True)
class Normal(Sampler):
    """A normal distribution."""

    mean: float = 0.0
    sd: float = 1.0


@dataclass(frozen=True, slots=True)
class Quantized(Sampler):
    """A draw that is rounded to multiples of `q`."""

    sampler: Sampler
    q: float

    def get_sampler(self) -> Sampler:
        """What is rounded."""
        return self.sampler


def sampler_of(domain: Any) -> Sampler:
    """How a domain draws, from its fields."""
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
