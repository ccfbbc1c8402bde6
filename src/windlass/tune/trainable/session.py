"""Functions for the code of trials: `report`, `get_checkpoint` and `get_context` of the running attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from windlass.tune.errors import BadValueError
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trial import ONE_CPU, Resources

__all__ = ["Session", "TrialContext", "TrialHalted", "current_session", "get_checkpoint", "get_context", "report"]


class TrialHalted(BaseException):
    """Exception that `report` raises to end a trial that the sweep has stopped. Do not catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """Identity of a trial: its names, folder and resources.

    Attributes:
        trial_dir: folder for the trial's files; created when `get_trial_dir` is first called.
    """

    experiment_name: str
    trial_id: str
    trial_name: str
    trial_dir: str
    attempt: int = 1
    resources: Resources = ONE_CPU

    def get_experiment_name(self) -> str:
        """Return the name of the sweep."""
        return self.experiment_name

    def get_trial_id(self) -> str:
        """Return the id of the trial, such as `00003`."""
        return self.trial_id

    def get_trial_name(self) -> str:
        """Return the name of the trial as shown to users."""
        return self.trial_name

    def get_trial_resources(self) -> Resources:
        """Return the resources of the trial."""
        return self.resources

    def get_trial_dir(self) -> str:
        """Return the trial's folder, creating it if missing."""
        Path(self.trial_dir).mkdir(parents=True, exist_ok=True)
        return self.trial_dir

    def get_world_size(self) -> int:
        """Return 1, because a trial counts as one process."""
        return 1

    def get_world_rank(self) -> int:
        """Return 0, because a trial counts as one process."""
        return 0

    def get_local_rank(self) -> int:
        """Return 0, because a trial counts as one process."""
        return 0


class Session(Protocol):
    """Attempt that is running in this process."""

    @property
    def context(self) -> TrialContext:
        """Context of the trial."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Checkpoint to continue from, or the newest one that has been reported since."""

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None) -> None:
        """Report metrics, and wait if an answer is needed."""


_current: Session | None = None


def enter_session(session: Session | None) -> Session | None:
    """Set the session of this process, or None for no session; return the previous one."""
    global _current
    before, _current = _current, session
    return before


def current_session() -> Session | None:
    """Return the session of the trial that runs in this process."""
    return _current


def _session(caller: str) -> Session:
    if _current is None:
        raise BadValueError(
            f"tune.{caller} was called outside of a trial",
            hint="call it in the function that is passed to Tuner, not in a process that a trial started",
            code="invalid-call",
        )
    return _current


def report(metrics: Mapping[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Report the metrics of an iteration to the sweep, optionally with a checkpoint.

    Blocks while the sweep decides. A checkpoint is copied and committed before this returns, so its folder may then be
    removed or changed.

    Args:
        metrics: names to numbers, text or lists; nested names become `a/b`. `done: True` ends the trial.

    Raises:
        UsageError: called outside of a trial, a value is not JSON, or `checkpoint` is not a Checkpoint.
        TrialHalted: the sweep has stopped this trial; not an Exception, so that `except Exception` lets it pass.
    """
    session = _session("report")
    if checkpoint is not None and not hasattr(checkpoint, "as_directory"):
        raise BadValueError(
            f"tune.report(checkpoint={checkpoint!r:.100}) is a {type(checkpoint).__name__}, not a Checkpoint",
            hint="pass checkpoint=tune.Checkpoint.from_directory(folder)",
            code="invalid-value",
        )
    session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint to continue from, or the last one reported, or None at the start.

    Raises:
        UsageError: called outside of a trial.
    """
    return _session("get_checkpoint").checkpoint


def get_context() -> TrialContext:
    """Return the context of the trial: its id, name, folder and resources.

    Raises:
        UsageError: called outside of a trial.
    """
    return _session("get_context").context
