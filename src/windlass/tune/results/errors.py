"""Errors about results, which also have Ray Tune's types, so that existing `except` clauses work."""

from __future__ import annotations

from windlass.core.errors import NotFoundError, UsageError, WindlassError

__all__ = ["BestTrialError", "MetricError", "TrialError", "TrialMissingError"]


class MetricError(UsageError, ValueError):
    """Error for a missing, unknown or invalid metric or mode."""

    default_code = "unknown-metric"


class BestTrialError(NotFoundError, RuntimeError):
    """Error for a sweep without a best trial, because none has a score."""

    default_code = "sweep-no-best"


class TrialMissingError(NotFoundError, KeyError):
    """Error for a trial that the sweep does not have."""

    default_code = "sweep-not-found"

    def __str__(self) -> str:
        return self.message


class TrialError(WindlassError, RuntimeError):
    """Error that ended a trial; its message is the trial's traceback.

    Attributes:
        trial_id: id of the trial.
        kind: name of the exception's type, such as `ValueError`.
    """

    default_code = "trial-failed"

    def __init__(self, trial_id: str, kind: str, traceback: str) -> None:
        super().__init__(
            traceback.rstrip() or f"trial {trial_id} failed",
            hint=f"`windlass sweep why` explains what happened to trial {trial_id}",
        )
        self.trial_id = trial_id
        self.kind = kind

    @property
    def last_line(self) -> str:
        """Last line of the traceback, which contains the type of the error."""
        return self.message.strip().rsplit("\n", 1)[-1]

    def __reduce__(self) -> tuple[type[TrialError], tuple[str, str, str]]:
        return type(self), (self.trial_id, self.kind, self.message)
