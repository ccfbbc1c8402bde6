"""Limit on how many trials of a searcher run at once, regardless of free slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from windlass.tune.errors import BadValueError
from windlass.tune.search.protocol import NoSuggestion, Objectives, SearchAlgorithm, Suggestion, Suggestions
from windlass.tune.search.standalone import StandaloneSearcher
from windlass.tune.trial import Metrics

__all__ = ["ConcurrencyLimiter"]


class ConcurrencyLimiter(StandaloneSearcher):
    """Wrapper that suggests nothing while `max_concurrent` trials are live.

    Attributes:
        batch: pass on results only when a whole batch is over, and then start the next batch.
    """

    def __init__(self, searcher: SearchAlgorithm, max_concurrent: int, batch: bool = False) -> None:
        """Wrap a searcher.

        Raises:
            UsageError: the limit is below 1.
        """
        from windlass.tune.search.registry import as_searcher  # lazy: the registry knows this class

        if max_concurrent < 1:
            raise BadValueError(f"max_concurrent is {max_concurrent}", hint="use 1 or more", code="searcher-option")
        self.searcher = as_searcher(searcher)
        self.max_concurrent = max_concurrent
        self.batch = batch
        self._live: set[int] = set()
        self._asked: set[int] = set()
        self._finished: dict[int, Metrics | None] = {}

    @property
    def learns(self) -> bool:
        """True if the wrapped searcher learns from results."""
        return self.searcher.learns

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the wrapped search; see `SearchAlgorithm.open`."""
        self.searcher.open(space=space, objectives=objectives, seed=seed, num_samples=num_samples)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        from windlass.tune.search.registry import searcher_settings  # lazy: as above

        return {
            "type": "ConcurrencyLimiter",
            "searcher": searcher_settings(self.searcher),
            "max_concurrent": self.max_concurrent,
            "batch": self.batch,
        }

    @overload
    def suggest(self, number: int) -> Suggestions: ...

    @overload
    def suggest(self, number: str) -> dict[str, Any] | str | None: ...

    def suggest(self, number: int | str) -> Suggestions | dict[str, Any] | str | None:
        """Return the next configuration, unless too many trials are live; see `SearchAlgorithm.suggest`.

        Suggestions requested ahead count as live. A string id means that there is no sweep.
        """
        if isinstance(number, str):
            return self.suggest_standalone(number)
        if number not in self._asked and len(self._live) + len(self._asked) >= self.max_concurrent:
            return NoSuggestion.NOT_YET
        suggestion = self.searcher.suggest(number)
        if isinstance(suggestion, Suggestion):
            self._asked.add(number)
        return suggestion

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Record a suggestion; see `SearchAlgorithm.on_suggested`."""
        self._asked.discard(number)
        self._live.add(number)
        self.searcher.on_suggested(number, suggestion)

    def on_result(self, number: int, result: Metrics) -> None:
        """Pass a result on; see `SearchAlgorithm.on_result`."""
        self._asked.clear()
        self.searcher.on_result(number, result)

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Record the end of a trial and pass it on; see `SearchAlgorithm.on_complete`."""
        self._asked.clear()
        self._finished[number] = result
        if self.batch and len(self._finished) < len(self._live):
            return
        for finished, its_result in self._finished.items():
            self._live.discard(finished)
            self.searcher.on_complete(finished, its_result)
        self._finished.clear()

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Pass known points on; see `SearchAlgorithm.add_known`."""
        self.searcher.add_known(configs, results)
