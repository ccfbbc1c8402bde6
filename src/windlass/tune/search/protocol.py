"""What a searcher is: it says which configuration to try next. Three methods make a plug-in.

A searcher is a pure function of its seed and of what it was told, in this order; so the controller restores one by
telling it everything again from the journal. `suggest` may be slow (a model): it is asked ahead in idle time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from windlass.tune.trial import Metrics

__all__ = ["NoSuggestion", "Objectives", "SearchAlgorithm", "Suggestion", "Suggestions"]


class NoSuggestion(Enum):
    """Why there is no suggestion."""

    NOT_YET = "now"  # ask again when a trial has reported or ended
    FINISHED = "ever"  # the space, or the number of samples, is used up


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One configuration.

    Attributes:
        config: resolved and nested as the space is.
        assigned: the values that were drawn, flat: `{"model/layers": 4}`.
        note: JSON that the searcher wants back in `on_suggested` when a sweep is restored.
    """

    config: dict[str, Any]
    assigned: dict[str, Any] = field(default_factory=dict)
    note: Any = None


Suggestions = Suggestion | NoSuggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What the sweep is for: names of metrics, best first, and whether more of each is better."""

    metrics: tuple[str, ...] = ()
    is_max: tuple[bool, ...] = ()


class SearchAlgorithm(Protocol):
    """One algorithm of search."""

    @property
    def learns(self) -> bool:
        """Whether what it was told changes what it suggests; what was asked ahead is thrown away then."""

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Begin. Called once, before anything else; `num_samples` -1 is unbounded.

        Raises:
            UsageError: the space holds what this searcher cannot search.
        """

    def settings(self) -> Mapping[str, object]:
        """The JSON form of its arguments, for the journal."""

    def suggest(self, number: int) -> Suggestions:
        """The configuration of trial `number`; asked again for the same number where it said NOW.

        Asking is free of effects until `on_suggested` says that the answer is used.
        """

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Trial `number` has this configuration: just now, or in a journal that is replayed."""

    def on_result(self, number: int, result: Metrics) -> None:
        """A trial reported, and goes on."""

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """A trial is over; None: without a score, by an error."""

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Points that were evaluated elsewhere."""
