"""Domains for a parameter: ranges and lists of values, and the mapping from 64 random bits to a value.

A domain has no generator. `at(bits)` maps a 64-bit number to a value, so that counters, quasi-random sequences and
generators all draw in the same way, with only the standard library.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from windlass.tune.errors import SpaceError
from windlass.tune.space.samplers import Sampler, sampler_of
from windlass.tune.space.values import is_same

__all__ = ["NUM_BITS", "Categorical", "Domain", "Float", "Integer", "NormalFloat", "bits_from", "unit"]

NUM_BITS = 64
_TO_UNIT = 2.0**-53


class _Bytes(Protocol):
    def bytes(self, length: int) -> bytes: ...


RandomState = random.Random | _Bytes | int | None
"""Generator of the standard library or NumPy, a seed, or None for the global `random` generator."""


def unit(bits: int) -> float:
    """Convert 64 bits to a number in [0, 1), using only the upper 53 bits."""
    return (bits >> 11) * _TO_UNIT


def bits_from(random_state: RandomState) -> int:
    """Return 64 bits from any kind of generator; for a seed, these are the first of its sequence."""
    if random_state is None:
        return random.getrandbits(NUM_BITS)
    if isinstance(random_state, int):
        return random.Random(random_state).getrandbits(NUM_BITS)
    if isinstance(random_state, random.Random):
        return random_state.getrandbits(NUM_BITS)
    return int.from_bytes(random_state.bytes(8), "big")


class Domain:
    """Set of values with a distribution. Immutable."""

    __slots__ = ()

    def at(self, bits: int) -> Any:
        """Return the value for 64 random bits."""
        raise NotImplementedError

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is within the bounds, which are inclusive.

        As in Ray Tune, steps are ignored.
        """
        raise NotImplementedError

    def get_sampler(self) -> Sampler:
        """Return the sampler, as in Ray Tune."""
        return sampler_of(self)

    @property
    def sampler(self) -> Sampler:
        """Sampler, the same as from `get_sampler`."""
        return sampler_of(self)

    def sample(self, config: Any = None, size: int = 1, random_state: RandomState = None) -> Any:
        """Sample a value, or a list of `size` values.

        `config` is accepted for compatibility and not used.
        """
        del config
        source = random.Random(random_state) if isinstance(random_state, int) else random_state
        drawn = [self.at(bits_from(source)) for _ in range(size)]
        return drawn if size > 1 else drawn[0]


@dataclass(frozen=True, slots=True, repr=False)
class Float(Domain):
    """Floats from `lower` to `upper`, excluding `upper`; with a step, its multiples, including `upper`.

    With a step, a value is drawn and then rounded, so each bound has half the weight of other values.
    """

    lower: float
    upper: float
    is_log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        unbounded = {"lower": -math.inf, "upper": math.inf}  # of Ray Tune's `Float(None, None).normal()`
        missing = [name for name in unbounded if getattr(self, name) is None]
        for name in missing:
            object.__setattr__(self, name, unbounded[name])
        if not missing:
            _check_range(self, self.lower, self.upper)
        if self.is_log and self.lower <= 0:
            raise SpaceError(f"{self}: a log scale needs a lower bound above 0", hint=_LOG_HINT)
        if self.step is not None:
            _check_step(self, self.step)
            for bound in (self.lower, self.upper):
                if math.isfinite(bound) and not math.isclose(bound / self.step, round(bound / self.step), abs_tol=1e-9):
                    raise SpaceError(
                        f"{self}: {bound!r} is not a multiple of {self.step!r}",
                        hint=f"use {_tidy(round(bound / self.step), self.step)!r}",
                    )

    def uniform(self) -> Float:
        """Return self, which is already uniform; for compatibility with Ray Tune."""
        if self.is_log:
            raise _second_sampler(self, "uniform")
        _check_range(self, self.lower, self.upper)
        return self

    def loguniform(self, base: float | None = None) -> Float:
        """Return this range on a log scale. `base` has no effect."""
        del base
        _check_range(self, self.lower, self.upper)
        return Float(self.lower, self.upper, is_log=True, step=self.step)

    def normal(self, mean: float = 0.0, sd: float = 1.0) -> NormalFloat:
        """Return a normal distribution, which has no bounds."""
        return NormalFloat(float(mean), float(sd), step=self.step)

    def quantized(self, q: float) -> Float:
        """Return this range in multiples of `q`, which the bounds must be too."""
        return Float(self.lower, self.upper, is_log=self.is_log, step=float(q))

    def at(self, bits: int) -> float:
        share = unit(bits)
        if math.isinf(self.lower) or math.isinf(self.upper):
            raise SpaceError(f"{self} has no bounds to draw between", hint="pass for example tune.uniform(0, 1)")
        if self.is_log:
            low, high = math.log(self.lower), math.log(self.upper)
            value = math.exp(low + share * (high - low))
        else:
            value = self.lower * (1.0 - share) + self.upper * share  # avoids overflow of upper - lower
        return self.nearest(value)

    def nearest(self, value: float) -> float:
        """Return the float in this domain that is nearest to a number."""
        if self.step is not None:
            return min(max(_tidy(round(value / self.step), self.step), self.lower), self.upper)
        if value >= self.upper:
            return math.nextafter(self.upper, self.lower)  # if the bounds are equal, return the bound
        return max(value, self.lower)

    def is_valid(self, value: Any) -> bool:
        return _is_number(value) and self.lower <= value <= self.upper

    def __repr__(self) -> str:
        return _written(f"{'q' if self.step is not None else ''}{'log' if self.is_log else ''}uniform", self)


@dataclass(frozen=True, slots=True, repr=False)
class NormalFloat(Domain):
    """Floats from a normal distribution, rounded to multiples of a step if there is one."""

    mean: float = 0.0
    sd: float = 1.0
    step: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.sd) and self.sd > 0):
            raise SpaceError(
                f"{self}: a normal distribution needs a finite mean and a spread above 0",
                hint="pass for example randn(0, 1)",
            )
        if self.step is not None:
            _check_step(self, self.step)

    def at(self, bits: int) -> float:
        share = max(unit(bits), _TO_UNIT / 2)
        return self.at_share(share)

    def uniform(self) -> Float:
        """Raise an error, because the domain already has a distribution."""
        raise _second_sampler(self, "uniform")

    def loguniform(self, base: float | None = None) -> Float:
        """Raise an error, because the domain already has a distribution."""
        raise _second_sampler(self, "loguniform")

    def quantized(self, q: float) -> NormalFloat:
        """Return the same distribution with values rounded to multiples of `q`."""
        return NormalFloat(self.mean, self.sd, step=float(q))

    def at_share(self, share: float) -> float:
        """Return the quantile for a fraction of all samples, 0 < share < 1."""
        from statistics import NormalDist  # lazy: costs 5 ms, and few spaces need it

        value = NormalDist(self.mean, self.sd).inv_cdf(share)
        return value if self.step is None else _tidy(round(value / self.step), self.step)

    def share_of(self, value: float) -> float:
        """Return the fraction of all samples, before rounding, that are below a value."""
        from statistics import NormalDist  # lazy: as above

        return NormalDist(self.mean, self.sd).cdf(value)

    def is_valid(self, value: Any) -> bool:
        return _is_number(value)

    def __repr__(self) -> str:
        words = [repr(self.mean), repr(self.sd), *([] if self.step is None else [repr(self.step)])]
        return f"{'q' if self.step is not None else ''}randn({', '.join(words)})"


@dataclass(frozen=True, slots=True, repr=False)
class Integer(Domain):
    """Integers from `lower` to `upper`, excluding `upper`; with a step, its multiples, including `upper`.

    All multiples are equally likely, or spread evenly on a log scale. Steps that do not divide a bound round inwards.
    """

    lower: int
    upper: int
    is_log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        _check_range(self, self.lower, self.upper)
        _check_step(self, self.step)
        if self.is_log and self.lower <= 0:
            raise SpaceError(f"{self}: a log scale needs a lower bound above 0", hint=_LOG_HINT)
        if self.last < self.first:
            what = (
                "the upper bound is not included"
                if self.step == 1
                else f"no multiple of {self.step} is between its bounds"
            )
            hint = "raise the upper bound" if self.step == 1 else "lower the step, or widen the range"
            raise SpaceError(f"{self}: the range is empty, {what}", hint=hint, code="invalid-space")

    def uniform(self) -> Integer:
        """Return self, which is already uniform; for compatibility with Ray Tune."""
        if self.is_log:
            raise _second_sampler(self, "uniform")
        return self

    def loguniform(self, base: float | None = None) -> Integer:
        """Return this range on a log scale. `base` has no effect."""
        del base
        return Integer(self.lower, self.upper, is_log=True, step=self.step)

    def quantized(self, q: int) -> Integer:
        """Return the multiples of `q` in the same range."""
        return Integer(self.lower, self.upper, is_log=self.is_log, step=q)

    @property
    def first(self) -> int:
        """Smallest value, counted in steps."""
        return -(-self.lower // self.step)

    @property
    def last(self) -> int:
        """Largest value, counted in steps."""
        return self.upper - 1 if self.step == 1 else self.upper // self.step

    def at(self, bits: int) -> int:
        first, last = self.first, self.last
        if not self.is_log:
            return (first + ((bits * (last - first + 1)) >> NUM_BITS)) * self.step
        low, high = math.log(first), math.log(last + 1)
        return min(max(int(math.exp(low + unit(bits) * (high - low))), first), last) * self.step

    def is_valid(self, value: Any) -> bool:
        return _is_number(value) and self.lower <= value <= self.upper

    def __repr__(self) -> str:
        name = f"{'q' if self.step != 1 else ''}{'log' if self.is_log else ''}randint"
        words = [self.lower, self.upper, *([] if self.step == 1 else [self.step])]
        return f"{name}({', '.join(map(repr, words))})"


@dataclass(frozen=True, slots=True, repr=False)
class Categorical(Domain):
    """List of values that are equally likely or, with `is_grid`, taken one after another."""

    categories: Sequence[Any]
    is_grid: bool = False

    def __post_init__(self) -> None:
        if not self.categories:
            name = "grid_search" if self.is_grid else "choice"
            raise SpaceError(f"{name}([]) has no values", hint="list at least one", code="invalid-space")

    def at(self, bits: int) -> Any:
        return self.categories[(bits * len(self.categories)) >> NUM_BITS]

    def is_valid(self, value: Any) -> bool:
        return self.index(value) >= 0

    def uniform(self) -> Categorical:
        """Return self, which is already uniform; for compatibility with Ray Tune."""
        return self

    def grid(self) -> Categorical:
        """Return a grid of these values, as `grid_search` does."""
        return Categorical(self.categories, is_grid=True)

    def index(self, value: Any) -> int:
        """Return the index of a value, preferring one of the same type (`True` is not 1), or -1 if it is missing."""
        equal = [i for i, one in enumerate(self.categories) if is_same(value, one)]
        return next((i for i in equal if type(self.categories[i]) is type(value)), equal[0] if equal else -1)

    def __len__(self) -> int:
        return len(self.categories)

    def __getitem__(self, index: int) -> Any:
        return self.categories[index]

    def __repr__(self) -> str:
        return f"{'grid_search' if self.is_grid else 'choice'}({list(self.categories)!r})"


_LOG_HINT = "give the bounds themselves, not their logarithms"


def _second_sampler(domain: Domain, name: str) -> SpaceError:
    return SpaceError(f"{domain} already has a distribution, so {name} cannot be added", hint="use one of the two")


def _check_range(domain: Float | Integer, lower: float, upper: float) -> None:
    if not (math.isfinite(lower) and math.isfinite(upper)):
        raise SpaceError(f"{domain}: the bounds must be finite", hint="use randn for an unbounded parameter")
    if lower > upper:
        raise SpaceError(f"{domain}: the lower bound is above the upper bound", hint=f"swap {lower!r} and {upper!r}")


def _check_step(domain: Domain, step: float) -> None:
    if not (math.isfinite(step) and step > 0):
        raise SpaceError(
            f"{domain}: the step must be above 0, not {step!r}", hint="use uniform for a range without steps"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)


def _written(name: str, domain: Float) -> str:
    words = [domain.lower, domain.upper, *([] if domain.step is None else [domain.step])]
    return f"{name}({', '.join(map(repr, words))})"


def _tidy(count: int, step: float) -> float:
    """Return the sum of `count` steps without floating-point noise: 3 x 0.1 is 0.3."""
    return round(count * step, _num_decimals(step))


@lru_cache(maxsize=256)
def _num_decimals(step: float) -> int:
    text = repr(step)
    mantissa, _, exponent = text.partition("e")
    return max(len(mantissa.partition(".")[2]) - int(exponent or 0), 0)
