"""Protocol for searchers, which choose the next configuration.

A searcher is a pure function of its seed and of the calls made to it, so the controller restores one by repeating
those calls from the journal. `suggest` may be slow (a model): it is called ahead in idle time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from windlass.tune.trial import Metrics

__all__ = ["NoSuggestion", "Objectives", "SearchAlgorithm", "Suggestion", "Suggestions"]


class NoSuggestion(Enum):
    """Reason why a searcher has no suggestion."""

    NOT_YET = "not-yet"  # ask again when a trial has reported or ended
    FINISHED = "finished"  # there are no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """Configuration that a searcher suggests.

    Attributes:
        config: nested as the space is, with a value for each parameter.
        assigned: the values that were drawn, flat: `{"model/layers": 4}`.
        note: JSON that the searcher gets back in `on_suggested` when a sweep is restored.
    """

    config: dict[str, Any]
    assigned: dict[str, Any] = field(default_factory=dict)
    note: Any = None


Suggestions = Suggestion | NoSuggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Metrics that the sweep optimizes, most important first, and whether higher is better for each."""

    metrics: tuple[str, ...] = ()
    is_max: tuple[bool, ...] = ()


class SearchAlgorithm(Protocol):
    """Algorithm that chooses the next configuration."""

    @property
    def learns(self) -> bool:
        """True if results change the suggestions; suggestions requested ahead are then dropped."""

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search. Called once, before anything else.

        A `num_samples` of -1 means that it is unbounded.

        Raises:
            UsageError: this searcher cannot search the space.
        """

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON, for the journal."""

    def suggest(self, number: int) -> Suggestions:
        """Return the configuration for trial `number`.

        After NOT_YET, it is called again for the same number.

        The call has no effect until `on_suggested` reports that the answer is used.
        """

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Called when trial `number` has got this configuration, now or in a replayed journal."""

    def on_result(self, number: int, result: Metrics) -> None:
        """Called when a trial has reported and continues."""

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Called when a trial has ended; `result` is None after an error."""

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Add points that were evaluated outside this sweep."""
