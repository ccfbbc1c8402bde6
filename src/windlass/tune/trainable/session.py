"""What a trial's own code calls: `report`, `get_checkpoint`, `get_context`; they speak to the attempt that runs."""

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
    """Raised by `report` to end a trial that the sweep has stopped; let it pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """Who this trial is.

    Attributes:
        trial_dir: where the trial may write files; made when `get_trial_dir` is first called.
    """

    experiment_name: str
    trial_id: str
    trial_name: str
    trial_dir: str
    attempt: int = 1
    resources: Resources = ONE_CPU

    def get_experiment_name(self) -> str:
        """Name of the sweep."""
        return self.experiment_name

    def get_trial_id(self) -> str:
        """Id of the trial, such as `00003`."""
        return self.trial_id

    def get_trial_name(self) -> str:
        """Name of the trial for people."""
        return self.trial_name

    def get_trial_resources(self) -> Resources:
        """What the trial was given."""
        return self.resources

    def get_trial_dir(self) -> str:
        """A folder of the trial's own below the sweep's, made if missing."""
        Path(self.trial_dir).mkdir(parents=True, exist_ok=True)
        return self.trial_dir

    def get_world_size(self) -> int:
        """Always 1: a trial is one process, whatever it starts."""
        return 1

    def get_world_rank(self) -> int:
        """Always 0."""
        return 0

    def get_local_rank(self) -> int:
        """Always 0."""
        return 0


class Session(Protocol):
    """The attempt that runs in this process."""

    @property
    def context(self) -> TrialContext:
        """Who it is."""

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What it goes on from; later the newest that it reported."""

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None) -> None:
        """Tell metrics, and wait where an answer is needed."""


_current: Session | None = None


def enter_session(session: Session | None) -> Session | None:
    """Make a session the one of this process, or none; returns the one before."""
    global _current
    before, _current = _current, session
    return before


def current_session() -> Session | None:
    """The session of the trial that runs in this process."""
    return _current


def _session(caller: str) -> Session:
    if _current is None:
        raise BadValueError(
            f"tune.{caller} was called outside of a trial",
            hint="call it in the function that is given to Tuner; a process that a trial started has no trial of its own",
            code="outside-of-a-trial",
        )
    return _current


def report(metrics: Mapping[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """Tell the sweep how a trial does, with a checkpoint if there is one; once per iteration.

    Blocks while the sweep has to decide. A checkpoint is copied and committed before this returns, so its folder may
    go or change afterwards.

    Args:
        metrics: names to numbers, text or lists; nested names become `a/b`. `done: True` ends the trial.

    Raises:
        UsageError: called outside of a trial, a value is not JSON, or `checkpoint` is no Checkpoint.
        TrialHalted: the sweep has stopped this trial; not an Exception, so that `except Exception` lets it pass.
    """
    session = _session("report")
    if checkpoint is not None and not hasattr(checkpoint, "as_directory"):
        raise BadValueError(
            f"tune.report(checkpoint={checkpoint!r:.100}) is a {type(checkpoint).__name__}, not a Checkpoint",
            hint="write checkpoint=tune.Checkpoint.from_directory(folder)",
            code="bad-value",
        )
    session.report(metrics, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint to go on from; None where the trial begins anew. After a report with one: that one.

    Raises:
        UsageError: called outside of a trial.
    """
    return _session("get_checkpoint").checkpoint


def get_context() -> TrialContext:
    """Who this trial is: id, name, folder, resources.

    Raises:
        UsageError: called outside of a trial.
    """
    return _session("get_context").context
