"""Population based bandits: PBT that chooses new configurations with a Gaussian process, not at random.

Source: Parker-Holder et al. 2020, "Provably efficient online hyperparameter optimization with population-based
bandits" (arXiv 2002.02518), algorithm 1 and section 4.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from windlass.tune.schedulers.fifo import refuse
from windlass.tune.schedulers.pbt import PopulationBasedTraining
from windlass.tune.schedulers.population_based.explore import Config
from windlass.tune.schedulers.population_based.gaussian_process import TimeVaryingProcess, numpy_and_minimize
from windlass.tune.schedulers.population_based.ranking import Member
from windlass.tune.schedulers.protocol import ScheduledSweep
from windlass.tune.space.values import flat

__all__ = ["PB2"]

_NUM_POINTS = 200
_NUM_CANDIDATES = 256
_NUM_STARTS = 3


@dataclass(frozen=True, slots=True)
class _Row:
    """State of a trial at one time: its configuration (flat values in the order of the bounds) and its score."""

    trial: str
    time: float
    values: tuple[float, ...]
    score: float


@dataclass(frozen=True, slots=True)
class _Change:
    """Gain of a configuration per unit of time, and the state from which it started."""

    trial: str
    time: float
    before: float
    after: float
    values: tuple[float, ...]
    gain: float


class PB2(PopulationBasedTraining):
    """Population based training that gives clones the configuration with the best upper confidence bound on the gain.

    A Gaussian process with a time-varying kernel learns the gain of each configuration per unit of time, given time
    and score before, from the newest 200 intervals. Choices of the same round count as tried, so clones differ.
    Continuous values only; integers are rounded.

    Args:
        hyperparam_bounds: name to `[low, high]`, or a nested dictionary of those. Values that a trial's configuration
            lacks are drawn between the bounds.
        time_attr, perturbation_interval, quantile_fraction, synch: as of PopulationBasedTraining, as all others.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[Config], Any] | None = None,
    ) -> None:
        self.hyperparam_bounds = dict(hyperparam_bounds or {})
        self._bounds = flat(self.hyperparam_bounds)
        _check_bounds(self._bounds)
        super().__init__(
            time_attr=time_attr, metric=metric, mode=mode, perturbation_interval=perturbation_interval,
            hyperparam_mutations=self.hyperparam_bounds, quantile_fraction=quantile_fraction, resample_probability=0,
            custom_explore_fn=custom_explore_fn, log_config=log_config, require_attrs=require_attrs, synch=synch,
        )  # fmt: skip
        self._rows: list[_Row] = []
        self._round_at = -math.inf
        self._round: list[tuple[float, ...]] = []  # chosen in the present round

    def _record(self, member: Member, time: float, score: float) -> None:
        super()._record(member, time, score)
        if math.isfinite(score):
            self._rows.append(_Row(member.trial.id, time, self._values_of(member.trial.config), score))
            del self._rows[: -20 * _NUM_POINTS]

    def _values_of(self, config: Config) -> tuple[float, ...]:
        known = flat(config)
        return tuple(float(known[name]) for name in self._bounds)

    def _drawn(self, source: Any, rng: Random) -> Any:
        if isinstance(source, Mapping):
            return {key: self._drawn(below, rng) for key, below in source.items()}
        return rng.uniform(*source)

    def _changed(
        self, sweep: ScheduledSweep, member: Member, source: Member, rng: Random
    ) -> tuple[Config, dict[str, Any]]:
        config = copy.deepcopy(source.trial.config)
        newest = max((row.time for row in self._rows), default=-math.inf)
        if newest > self._round_at:
            self._round_at, self._round = newest, []
        changes = _changes(self._rows)[-_NUM_POINTS:]
        base = next((change for change in reversed(changes) if change.trial == source.trial.id), None)
        if base is None:
            return config, {}
        chosen = _choose(changes, base, self._round, list(self._bounds.values()), rng)
        for name, value in zip(self._bounds, chosen, strict=True):
            _put(config, name.split("/"), value)
        values = self._values_of(config)
        self._round.append(values)
        self._rows.append(_Row(member.trial.id, base.time, values, base.after))
        return config, dict.fromkeys(self._bounds, "chosen by the model")


def _check_bounds(bounds: Mapping[str, Any]) -> None:
    if not bounds:
        raise refuse("PB2 has no hyperparam_bounds", 'pass for example hyperparam_bounds={"lr": [1e-5, 1e-1]}')
    for name, pair in bounds.items():
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and pair[0] <= pair[1]):
            raise refuse(f"hyperparam_bounds[{name!r}] is {pair!r}", "give [low, high]")


def _changes(rows: Sequence[_Row]) -> list[_Change]:
    """Return the gain between two consecutive results of a trial with one configuration, in order of time."""
    found: list[_Change] = []
    newest: dict[tuple[str, tuple[float, ...]], _Row] = {}
    for row in sorted(rows, key=lambda one: one.time):
        before = newest.get((row.trial, row.values))
        newest[row.trial, row.values] = row
        if before is not None and row.time > before.time:
            gain = row.score - before.score
            found.append(
                _Change(row.trial, row.time, before.score, row.score, row.values, gain / (row.time - before.time))
            )
    return found


def _choose(
    changes: Sequence[_Change], base: _Change, tried: Sequence[tuple[float, ...]], bounds: Sequence[Any], rng: Random
) -> list[float]:
    """Return the values that maximize mean + sqrt(beta) * deviation; `tried` values lower the deviation."""
    np, minimize = numpy_and_minimize()
    low_K, high_K = np.array(bounds, dtype=float).T
    situations_N2 = np.array([(change.time, change.before) for change in changes])
    lows_2, widths_2 = situations_N2.min(axis=0), np.ptp(situations_N2, axis=0) + 1e-8
    situation_2 = (np.array([base.time, base.before]) - lows_2) / widths_2
    values_NK = (np.array([change.values for change in changes]) - low_K) / (high_K - low_K + 1e-8)
    gains_N = np.array([change.gain for change in changes])
    gains_N = np.clip((gains_N - gains_N.mean()) / (gains_N.std() + 1e-8), -2, 2)
    process = TimeVaryingProcess(np.hstack(((situations_N2 - lows_2) / widths_2, values_NK)), gains_N)
    spread = process
    if tried:
        tried_MK = (np.array(tried) - low_K) / (high_K - low_K + 1e-8)
        spread = process.also(np.hstack((np.tile(situation_2, (len(tried), 1)), tried_MK)))
    beta = 0.2 + max(0.0, math.log(0.4 * len(changes)))

    def bounds_at(values_MK: Any) -> Any:
        points_MD = np.hstack((np.tile(situation_2, (len(values_MK), 1)), values_MK))
        return process.predict(points_MD)[0] + math.sqrt(beta) * spread.predict(points_MD)[1]

    drawn_MK = np.array([[rng.random() for _ in low_K] for _ in range(_NUM_CANDIDATES)])
    starts = drawn_MK[np.argsort(-bounds_at(drawn_MK), kind="stable")[:_NUM_STARTS]]
    ranges = [(0, 1)] * len(low_K)
    found = [
        minimize(lambda one: -bounds_at(one[None, :])[0], start, method="L-BFGS-B", bounds=ranges) for start in starts
    ]
    best = min(found, key=lambda one: float(one.fun)).x
    return [float(value) for value in low_K + np.clip(best, 0, 1) * (high_K - low_K)]


def _put(config: Config, path: Sequence[str], value: float) -> None:
    """Set a value, as an integer if the old value is an integer."""
    for key in path[:-1]:
        config = config[key]
    is_int = isinstance(config[path[-1]], int) and not isinstance(config[path[-1]], bool)
    config[path[-1]] = round(value) if is_int else value
