"""Primitives of a search space, such as `tune.uniform(0, 1)`, with the bounds of Ray Tune's functions.

Upper bounds are excluded, except for the quantised primitives (names with a `q`, step above 1).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from windlass.tune.errors import SpaceError
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Float, Integer, NormalFloat
from windlass.tune.space.values import plain

__all__ = [
    "PRIMITIVES",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "sample_from",
    "uniform",
]


def uniform(lower: float, upper: float) -> Float:
    """Sample a float uniformly from [lower, upper)."""
    return Float(_float(lower), _float(upper))


def quniform(lower: float, upper: float, q: float) -> Float:
    """Sample a float uniformly from [lower, upper] and round it to a multiple of `q`, as both bounds must be."""
    return Float(_float(lower), _float(upper), step=_float(q))


def loguniform(lower: float, upper: float, base: float | None = None) -> Float:
    """Sample a float from [lower, upper), uniformly on a log scale. `base` has no effect."""
    del base
    return Float(_float(lower), _float(upper), is_log=True)


def qloguniform(lower: float, upper: float, q: float, base: float | None = None) -> Float:
    """Sample a float from [lower, upper], uniformly on a log scale, and round it to a multiple of `q`."""
    del base
    return Float(_float(lower), _float(upper), is_log=True, step=_float(q))


def randn(mean: float = 0.0, sd: float = 1.0) -> NormalFloat:
    """Sample a float from the normal distribution with this mean and standard deviation."""
    return NormalFloat(_float(mean), _float(sd))


def qrandn(mean: float, sd: float, q: float) -> NormalFloat:
    """Sample a float from a normal distribution and round it to a multiple of `q`."""
    return NormalFloat(_float(mean), _float(sd), step=_float(q))


def randint(lower: int, upper: int) -> Integer:
    """Sample an integer uniformly from [lower, upper)."""
    return Integer(_int(lower), _int(upper))


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Sample a multiple of `q` uniformly from [lower, upper]; with a `q` of 1, `upper` is excluded."""
    return Integer(_int(lower), _int(upper), step=_int(q))


def lograndint(lower: int, upper: int, base: float | None = None) -> Integer:
    """Sample an integer from [lower, upper), uniformly on a log scale."""
    del base
    return Integer(_int(lower), _int(upper), is_log=True)


def qlograndint(lower: int, upper: int, q: int, base: float | None = None) -> Integer:
    """Sample a multiple of `q` from [lower, upper], uniformly on a log scale; with a `q` of 1, `upper` is excluded."""
    del base
    return Integer(_int(lower), _int(upper), is_log=True, step=_int(q))


def choice(categories: Iterable[Any]) -> Categorical:
    """Sample one of these equally likely values.

    A value that is itself a space is sampled too (conditional space).
    """
    return Categorical(_listed("choice", categories))


def grid_search(values: Iterable[Any]) -> dict[str, list[Any]]:
    """Try each value in combination with all other grids, `num_samples` times."""
    listed = _listed("grid_search", values)
    Categorical(listed, is_grid=True)
    return {"grid_search": listed}


def sample_from(func: Callable[..., Any] | str) -> Computed:
    """Compute a value from other values, which the function may read in any order.

    Args:
        func: a function of the configuration (`lambda config: config["layers"] * 64`; Ray's `lambda spec:
            spec.config.layers` works too), a function without arguments, or an expression in `config` as text.
    """
    return Computed(func)


PRIMITIVES: dict[str, Callable[..., Any]] = {
    made.__name__: made
    for made in (
        uniform, quniform, loguniform, qloguniform, randn, qrandn, randint, qrandint, lograndint, qlograndint, choice,
    )
}  # fmt: skip
"""Primitives that a file may name; `grid` and `eval` are the other two words there."""


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SpaceError(f"a bound must be a number, not {value!r}", code="invalid-space") from None


def _int(value: Any) -> int:
    try:
        return int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except TypeError:
        raise SpaceError(
            f"the bounds of an integer range must be integers, not {value!r}", hint="use uniform for floats"
        ) from None


def _listed(name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise SpaceError(f"{name} needs a list of values, not {values!r}", hint=f"{name}([{values!r}])")
    return [plain(value) for value in values]
