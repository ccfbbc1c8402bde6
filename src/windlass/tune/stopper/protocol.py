"""What a stopper is: it looks at every result and ends trials, or the whole sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from windlass.tune.trial import Metrics

__all__ = ["Stopper"]


class Stopper(Protocol):
    """Pure, as a scheduler is: its state follows from the calls it got, which are made again when a sweep is restored.

    Any object with these two methods, written for Ray Tune or for windlass, is one.
    """

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        """Whether this trial is to end."""

    def stop_all(self) -> bool:
        """Whether the sweep is to end; asked after each result."""

    def settings(self) -> Mapping[str, object]:
        """The JSON form of its arguments, for the journal; optional."""
