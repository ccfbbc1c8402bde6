"""Protocol for stoppers, which see every result and stop trials or the whole sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from windlass.tune.space.values import import_name
from windlass.tune.trial import Metrics

__all__ = ["Stopper", "stopper_settings"]


class Stopper(Protocol):
    """Stop condition.

    Its state depends only on its calls, which are repeated when a sweep is restored.

    Any object with these two methods, written for Ray Tune or for windlass, is a stopper.
    """

    def __call__(self, trial_id: str, result: Metrics) -> bool:
        """Return True to end this trial."""

    def stop_all(self) -> bool:
        """Return True to end the sweep. Called after each result."""

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON, for the journal. Optional."""


def stopper_settings(stopper: Stopper) -> dict[str, Any]:
    """Return `{"type": ..., **arguments}` as JSON, in which classes from other packages have their import path."""
    found: Mapping[str, Any] | None = getattr(stopper, "settings", dict)()
    if found and "type" in found:
        return dict(found)
    kind = type(stopper)
    return {"type": import_name(kind) or kind.__qualname__, **(found or {})}
