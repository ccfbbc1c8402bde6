"""Wrapper that repeats each configuration from a searcher, and tells it the mean of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.search.protocol import Objectives, SearchAlgorithm, Suggestion, Suggestions
from windlass.tune.trial import Metrics

__all__ = ["TRIAL_INDEX", "Repeater"]

TRIAL_INDEX = "__trial_index__"
"""Key of the repeat's index, from 0, in the configuration of a repeated trial; good for seeds."""


class Repeater:
    """Wrapper that runs each configuration several times; the wrapped searcher sees these runs as one trial.

    `num_samples` counts trials. An incomplete last group is run, but its result is not passed on.
    """

    def __init__(self, searcher: SearchAlgorithm, repeat: int = 1, set_index: bool = True) -> None:
        """Wrap a searcher.

        Raises:
            UsageError: fewer than one repeat.
        """
        from windlass.tune.search.registry import as_searcher  # lazy: the registry knows this class

        if repeat < 1:
            raise BadValueError(
                f"repeat is {repeat}", hint="use 1 or more; 1 runs every configuration once", code="searcher-option"
            )
        self.searcher = as_searcher(searcher)
        self.repeat = repeat
        self.set_index = set_index
        self._configs: dict[int, Suggestion] = {}
        self._results: dict[int, dict[int, Metrics | None]] = {}

    @property
    def learns(self) -> bool:
        """True if the wrapped searcher learns from results."""
        return self.searcher.learns

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the wrapped search; see `SearchAlgorithm.open`."""
        self.objectives = objectives
        groups = num_samples if num_samples < 0 else -(-num_samples // self.repeat)
        self.searcher.open(space=space, objectives=objectives, seed=seed, num_samples=groups)
        self._num_trials = float("inf") if num_samples < 0 else num_samples

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        from windlass.tune.search.registry import searcher_settings  # lazy: as above

        return {
            "type": "Repeater",
            "searcher": searcher_settings(self.searcher),
            "repeat": self.repeat,
            "set_index": self.set_index,
        }

    def suggest(self, number: int) -> Suggestions:
        """Return the next configuration, which may be a repeated one; see `SearchAlgorithm.suggest`."""
        group, index = divmod(number, self.repeat)
        inner = self._configs.get(group) or self.searcher.suggest(group)
        if not isinstance(inner, Suggestion):
            return inner
        config = {**inner.config, TRIAL_INDEX: index} if self.set_index else dict(inner.config)
        return Suggestion(config=config, assigned=inner.assigned, note=inner.note)

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Record a suggestion; see `SearchAlgorithm.on_suggested`."""
        group = number // self.repeat
        if group in self._configs:
            return
        config = {name: value for name, value in suggestion.config.items() if name != TRIAL_INDEX}
        self._configs[group] = Suggestion(config=config, assigned=suggestion.assigned, note=suggestion.note)
        self.searcher.on_suggested(group, self._configs[group])

    def on_result(self, number: int, result: Metrics) -> None:
        """Ignore the report of a single repeat, which is not the result of the whole group."""

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Record the end of a repeat; see `SearchAlgorithm.on_complete`."""
        group, index = divmod(number, self.repeat)
        results = self._results.setdefault(group, {})
        results[index] = result
        if len(results) == self.repeat:
            self.searcher.on_complete(group, self._mean(list(results.values())))
            del self._results[group], self._configs[group]

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Pass known points on; see `SearchAlgorithm.add_known`."""
        self.searcher.add_known(configs, results)

    def _mean(self, results: Sequence[Metrics | None]) -> Metrics | None:
        """Return the mean of each metric over the repeats that have it, or None if a metric is in no repeat."""
        means: Metrics = {}
        for name in self.objectives.metrics:
            values = [result[name] for result in results if result is not None and _is_number(result.get(name))]
            if not values:
                return None
            means[name] = sum(values) / len(values)
        return means


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and value == value  # noqa: PLR0124 - NaN is none
