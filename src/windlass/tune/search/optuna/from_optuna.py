"""Conversion of spaces that contain Optuna's distributions to windlass's search spaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.tune.space import Categorical, Domain, Float
from windlass.tune.space.domains import NUM_BITS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution, IntDistribution

__all__ = ["Steps", "as_space"]


@dataclass(frozen=True, slots=True)
class Steps(Domain):
    """Domain of the numbers from `low` to `high`, both included, in steps counted from `low`."""

    low: float
    high: float
    step: float
    is_log: bool = False

    @property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution over the domain."""
        from optuna.distributions import FloatDistribution, IntDistribution  # lazy: loaded already

        if isinstance(self.low, int):
            return IntDistribution(self.low, int(self.high), log=self.is_log, step=int(self.step))
        return FloatDistribution(self.low, self.high, step=self.step)

    def at(self, bits: int) -> Any:
        if self.is_log:
            return min(int(Float(self.low, self.high + 1, is_log=True).at(bits)), self.high)
        num_values = int((self.high - self.low) / self.step + 1e-9) + 1
        return min(self.low + ((bits * num_values) >> NUM_BITS) * self.step, self.high)

    def is_valid(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


def as_space(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the space with all of Optuna's distributions replaced; `a/b` is a nested name."""
    made: dict[str, Any] = {}
    for name, value in space.items():
        inner = made
        *above, last = str(name).split("/")
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = as_space(value) if _is_nested(value) else _domain(value)
    return made


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and not (len(value) == 1 and next(iter(value)) in ("grid_search", "eval"))


def _domain(value: Any) -> Any:
    kind = type(value).__name__
    if kind == "FloatDistribution":
        return Float(value.low, value.high, is_log=value.log) if value.step is None else _steps(value)
    if kind == "IntDistribution":
        return _steps(value)
    return Categorical(list(value.choices)) if kind == "CategoricalDistribution" else value


def _steps(value: IntDistribution) -> Steps:
    return Steps(value.low, value.high, value.step, value.log)
