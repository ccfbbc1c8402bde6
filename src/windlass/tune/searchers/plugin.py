"""Searchers written by others: three methods, as Ray Tune names them, and an adapter that makes a searcher of them.

class Mine(Searcher):
    def suggest(self, trial_id): return {"x": 3}                        # None: not now; Searcher.FINISHED: no more
    def on_trial_result(self, trial_id, result): ...                    # optional
    def on_trial_complete(self, trial_id, result=None, error=False): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.searchers.protocol import Goal, Nothing, Suggestion, Suggestions
from windlass.tune.space import Space, import_name
from windlass.tune.trial import Metrics

__all__ = ["Adapted", "Searcher"]


class Searcher:
    """What a plug-in may subclass; any object with the same methods will do."""

    FINISHED = "FINISHED"

    def __init__(self, metric: str | list[str] | None = None, mode: str | list[str] | None = None) -> None:
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | list[str] | None:
        """What is optimised."""
        return self._metric

    @property
    def mode(self) -> str | list[str] | None:
        """`min` or `max`, for each metric."""
        return self._mode

    def set_search_properties(self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any) -> bool:
        """Take the sweep's metric, mode and space; False where they are set already."""
        del metric, mode, config, spec
        return False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration; None: not now; `FINISHED`: no more."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Metrics) -> None:
        """A trial reported."""

    def on_trial_complete(self, trial_id: str, result: Metrics | None = None, error: bool = False) -> None:
        """A trial is over."""
        raise NotImplementedError


class Adapted:
    """A plug-in as a searcher of windlass.

    A plug-in keeps its own state, so it is asked once per trial and never ahead. A restored sweep asks it again for
    the trials that it had; one that then answers otherwise is told those results as points from elsewhere, if it has
    `add_evaluated_point`.
    """

    learns = False

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin
        self._answers: dict[int, Any] = {}
        self._strangers: dict[int, dict[str, Any]] = {}

    def open(self, *, space: Mapping[str, Any], goal: Goal, seed: int, num_samples: int) -> None:
        """See the protocol."""
        del seed
        self.goal = goal
        self.num_samples = num_samples
        self._fixed: dict[str, Any] = {}
        metrics = list(goal.metrics)
        modes = ["max" if is_max else "min" for is_max in goal.is_max]
        is_one = len(metrics) <= 1
        metric = metrics[0] if len(metrics) == 1 else metrics or None
        mode = modes[0] if len(modes) == 1 else modes or None
        taking = getattr(self.plugin, "set_search_properties", None)
        if taking is not None and taking(metric, mode, dict(space)):
            return
        own = Space(space)
        if not own.is_fixed:
            if taking is not None and is_one and getattr(self.plugin, "metric", None) is not None:
                raise UsageError(
                    f"{type(self.plugin).__name__} has a space of its own, and param_space draws values too",
                    hint="give the space in one place",
                    code="space-twice",
                )
            return
        self._fixed, _ = own.draw(0)

    def settings(self) -> Mapping[str, object]:
        """Its import path; its arguments are not known, so it must be given again to restore the sweep."""
        kind = type(self.plugin)
        return {"type": "Adapted", "plugin": import_name(kind) or kind.__qualname__}

    def suggest(self, number: int) -> Suggestions:
        """See the protocol."""
        if number >= self.num_samples >= 0:
            return Nothing.EVER
        if number not in self._answers:
            answer = self.plugin.suggest(_id(number))
            if answer is None:
                return Nothing.NOW
            if answer == Searcher.FINISHED:
                return Nothing.EVER
            if not isinstance(answer, Mapping):
                raise UsageError(
                    f"{type(self.plugin).__name__}.suggest returned {answer!r:.80}, no configuration",
                    hint="return a dictionary, None (not now), or Searcher.FINISHED",
                    code="bad-value",
                )
            self._answers[number] = answer
        config = {**self._fixed, **self._answers[number]}
        return Suggestion(config=config, assigned=dict(self._answers[number]))

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """See the protocol."""
        answer = self._answers.pop(number, None)
        if answer is None:
            answer = self.plugin.suggest(_id(number))
        if not isinstance(answer, dict) or {**self._fixed, **answer} != suggestion.config:
            self._strangers[number] = suggestion.config
            self._complete(number, None)

    def on_result(self, number: int, result: Metrics) -> None:
        """See the protocol."""
        telling = getattr(self.plugin, "on_trial_result", None)
        if telling is not None and number not in self._strangers:
            telling(_id(number), result)

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """See the protocol."""
        config = self._strangers.pop(number, None)
        if config is None:
            self._complete(number, result)
        elif result is not None:
            self.add_known([config], [result])

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """See the protocol; a plug-in that can not be told them is not."""
        adding = getattr(self.plugin, "add_evaluated_point", None)
        for config, result in zip(configs, results, strict=True):
            values = [result.get(name) for name in self.goal.metrics]
            if adding is not None and values:
                with contextlib.suppress(NotImplementedError):
                    adding(config, values[0] if len(values) == 1 else values)

    def _complete(self, number: int, result: Metrics | None) -> None:
        self.plugin.on_trial_complete(_id(number), result=result, error=result is None)


def _id(number: int) -> str:
    """The trial's id, as everywhere."""
    return f"{number:05d}"
