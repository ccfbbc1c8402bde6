"""Base class for most searchers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.extras import require
from windlass.core.phrases import count
from windlass.tune.errors import BadTypeError, BadValueError
from windlass.tune.search.protocol import NoSuggestion, Objectives, Suggestion, Suggestions
from windlass.tune.space import Space
from windlass.tune.space.values import flat
from windlass.tune.trial import Metrics

__all__ = ["SearcherDefaults", "library"]


class SearcherDefaults:
    """Searcher that counts its trials and does not learn; subclasses define `propose`.

    Attributes:
        points: configurations to try first, in order; missing values are drawn.
        max_concurrent: maximum number of live trials; 0 for no limit.
    """

    learns = False

    def __init__(self, *, points: Sequence[Mapping[str, Any]] = (), max_concurrent: int = 0) -> None:
        if isinstance(points, Mapping) or not all(isinstance(point, Mapping) for point in points):
            hint = "pass a list of configurations: points_to_evaluate=[{'lr': 0.1}]"
            raise BadTypeError(f"points_to_evaluate is {points!r:.80}", hint=hint, code="searcher-option")
        self.points = tuple(dict(point) for point in points)
        self.max_concurrent = max_concurrent
        self._live: set[int] = set()

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        self.space = Space(space)
        self.objectives = objectives
        self.seed = seed
        self.num_samples = num_samples
        self._presets = tuple(self.space.preset(point) for point in self.points)

    def suggest(self, number: int) -> Suggestions:
        """Return the next configuration; see `SearchAlgorithm.suggest`."""
        if not 0 <= number < self.num_trials():
            return NoSuggestion.FINISHED
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return NoSuggestion.NOT_YET
        if number < len(self._presets):
            config, assigned = self._presets[number].draw(self.seed, number)
            return Suggestion(config=config, assigned={**flat(self.points[number]), **assigned})
        return self.propose(number)

    def propose(self, number: int) -> Suggestions:
        """Return the configuration for a trial that is not one of the preset points."""
        raise NotImplementedError

    def num_trials(self) -> float:
        """Return the number of suggestions, which is infinite if samples are unbounded."""
        return float("inf") if self.num_samples < 0 else self.num_samples

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        settings: dict[str, object] = {"type": type(self).__name__}
        if self.points:
            settings["points_to_evaluate"] = [dict(point) for point in self.points]
        if self.max_concurrent:
            settings["max_concurrent"] = self.max_concurrent
        return settings

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Count the trial as live; see `SearchAlgorithm.on_suggested`."""
        del suggestion
        self._live.add(number)

    def on_result(self, number: int, result: Metrics) -> None:
        """Do nothing; see `SearchAlgorithm.on_result`."""

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Stop counting the trial as live; see `SearchAlgorithm.on_complete`."""
        del result
        self._live.discard(number)

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Raise an error if there are known points, because this searcher does not learn from them.

        Raises:
            UsageError: this searcher does not learn.
        """
        del results
        if configs:
            raise BadValueError(
                f"{type(self).__name__} does not learn from {count(len(configs), 'known point')}",
                hint="pass them to a searcher that learns, such as tune.TPE()",
                code="searcher-option",
            )


def library(name: str, who: str, *, hint: str = "pip install 'windlass[tune]'") -> Any:
    """Import and return a library that a searcher needs.

    Raises:
        PreconditionError: it is not installed.
    """
    return require(name, f"{who} needs the library {name.partition('.')[0]}, which is not installed", hint=hint)
