"""Protocol of stoppers, which see every result and stop trials, or the whole sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from windlass.tune.trial import Metrics

__all__ = ["Stopper"]


class Stopper(Protocol):
    """Stop condition; its state depends only on its calls, which are repeated when a sweep is restored.

    Any object with these two methods, written for Ray Tune or for windlass, is a stopper.
    """

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        """Return True to end this trial."""

    def stop_all(self) -> bool:
        """Return True to end the sweep; called after each result."""

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON, for the journal; optional."""
