"""The errors of results; each is also what Ray Tune raises there, so that `except` clauses written for it work."""

from __future__ import annotations

from windlass.core.errors import NotFoundError, UsageError, WindlassError

__all__ = ["BestTrialError", "MetricError", "TrialError", "TrialMissingError"]


class MetricError(UsageError, ValueError):
    """A metric or a mode is missing, unknown or not one of its legal values."""

    default_code = "sweep-metric"


class BestTrialError(NotFoundError, RuntimeError):
    """No trial has a score, so none is the best."""

    default_code = "sweep-no-best"


class TrialMissingError(NotFoundError, KeyError):
    """The sweep has no such trial."""

    default_code = "no-such-trial"

    def __str__(self) -> str:
        return self.message


class TrialError(WindlassError, RuntimeError):
    """What ended a trial: its message is the trial's own traceback.

    Attributes:
        trial_id: which trial.
        kind: name of the exception's type, such as `ValueError`.
    """

    default_code = "trial-failed"

    def __init__(self, trial_id: str, kind: str, traceback: str) -> None:
        super().__init__(
            traceback.rstrip() or f"trial {trial_id} failed",
            hint=f"`windlass sweep why` tells what trial {trial_id} did",
        )
        self.trial_id = trial_id
        self.kind = kind

    @property
    def last_line(self) -> str:
        """The line of the traceback that says what went wrong."""
        return self.message.strip().rsplit("\n", 1)[-1]

    def __reduce__(self) -> tuple[type[TrialError], tuple[str, str, str]]:
        return type(self), (self.trial_id, self.kind, self.message)
