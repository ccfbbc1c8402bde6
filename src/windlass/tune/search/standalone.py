"""Searchers without a sweep, with Ray Tune's methods and the caller's own trial ids.

searcher = OptunaSearch({"x": tune.uniform(0, 1)}, metric="loss", mode="min")
config = searcher.suggest("first")
searcher.on_trial_complete("first", {"loss": config["x"] ** 2})
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.search.protocol import NoSuggestion, Objectives, SearchAlgorithm, Suggestion
from windlass.tune.trial import Metrics

__all__ = ["StandaloneSearcher"]


class StandaloneSearcher:
    """Mix-in that adds the methods of Ray Tune's `Searcher` to those that a sweep calls."""

    _standalone: _Standalone | None = None

    def set_search_properties(self, metric: Any, mode: Any, config: Mapping[str, Any], **spec: Any) -> bool:
        """Set metric, mode and space; return False if the searcher already has a space."""
        del spec
        if self._standalone is not None or getattr(self, "own_space", None) is not None:
            return False
        self._standalone = _Standalone(self, config, _objectives_of(metric, mode))  # type: ignore[arg-type]
        return True

    def suggest_standalone(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration for a trial id, None if there is none now, or `FINISHED`."""
        if self._standalone is None:
            self._standalone = _Standalone(self, {}, None)  # type: ignore[arg-type]
        return self._standalone.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: Metrics) -> None:
        """Called when a trial has reported whose id was passed to `suggest`."""
        if self._standalone is not None and trial_id in self._standalone.numbers:
            self._standalone.searcher.on_result(self._standalone.numbers[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: Metrics | None = None, error: bool = False) -> None:
        """Called when a trial has ended whose id was passed to `suggest`."""
        if self._standalone is not None and trial_id in self._standalone.numbers:
            self._standalone.searcher.on_complete(self._standalone.numbers.pop(trial_id), None if error else result)


class _Standalone:
    """Copy of a searcher that was opened without a sweep, and the numbers of its live trials by id."""

    def __init__(self, searcher: SearchAlgorithm, space: Mapping[str, Any], objectives: Objectives | None) -> None:
        from windlass.tune.search.registry import own_objectives  # lazy: the registry is above

        inner = searcher
        while hasattr(inner, "searcher"):
            inner = inner.searcher
        is_own = getattr(inner, "own_space", None) is not None or hasattr(inner, "plugin")
        if not space and not is_own:
            raise BadValueError(
                f"{type(inner).__name__} has no space",
                hint="pass one: OptunaSearch({'lr': tune.loguniform(1e-5, 1e-1)}, metric='loss', mode='min')",
                code="searcher-option",
            )
        self.searcher = copy.deepcopy(searcher)  # the searcher itself is unchanged, for use in a sweep
        self.numbers: dict[str, int] = {}
        self._next = 0
        self.searcher.open(
            space=space, objectives=objectives or own_objectives(searcher) or Objectives(), seed=0, num_samples=-1
        )

    def __deepcopy__(self, memo: object) -> None:
        """Return None, because a sweep's copy of the searcher starts without this state."""

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        suggestion = self.searcher.suggest(self._next)
        if not isinstance(suggestion, Suggestion):
            return None if suggestion is NoSuggestion.NOT_YET else "FINISHED"
        self.numbers[trial_id] = self._next
        self.searcher.on_suggested(self._next, suggestion)
        self._next += 1
        return suggestion.config


def _objectives_of(metric: Any, mode: Any) -> Objectives | None:
    if not (metric and mode):
        return None
    metrics, modes = ((said,) if isinstance(said, str) else tuple(said) for said in (metric, mode))
    return Objectives(metrics=metrics, is_max=tuple(one == "max" for one in modes))
