"""Callbacks that run in a sweep's head process, with the protocol of Ray Tune's, for code that must run there.

For tables, dashboards and files prefer followers (`windlass.tune.followers`), which read the journal in their own
process: a slow callback slows the sweep down, and one that raises ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Callback", "LoggerCallback"]


class Callback:
    """Base class for callbacks; override the methods that you need.

    `trials` are views that cost nothing unless a callback walks them; `iteration` counts turns of the head. Setting
    `result["should_checkpoint"] = True` in `on_trial_result` lets the trial save. After the loss of the head a callback
    starts from scratch; `get_state` and `set_state` are for its own use.
    """

    def setup(
        self, stop: Any = None, num_samples: int | None = None, total_num_samples: int | None = None, **info: Any
    ) -> None:
        """Called once, before any trial starts."""

    def on_step_begin(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Called before the head handles new events."""

    def on_step_end(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Called after the head has handled new events."""

    def on_trial_start(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when an attempt of a trial has started."""

    def on_trial_restore(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when an attempt has started that continues from a checkpoint."""

    def on_trial_save(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when a checkpoint has been committed."""

    def on_trial_result(
        self, iteration: int, trials: Sequence[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Called when a trial has reported, before the scheduler decides."""

    def on_trial_complete(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when a trial has ended by itself or has been stopped."""

    def on_trial_recover(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when a trial has failed or lost its worker, and will be started again."""

    def on_trial_error(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Called when a trial has failed for good."""

    def on_checkpoint(self, iteration: int, trials: Sequence[Any], trial: Any, checkpoint: Any, **info: Any) -> None:
        """Called when a checkpoint has been committed."""

    def on_experiment_end(self, trials: Sequence[Any], **info: Any) -> None:
        """Called when the sweep has ended."""

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the callback that is to be kept."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `get_state` returned."""


class LoggerCallback(Callback):
    """Callback for loggers; override `log_trial_start`, `log_trial_result` and `log_trial_end`."""

    def log_trial_start(self, trial: Any) -> None:
        """Called when a trial starts for the first time."""

    def log_trial_restore(self, trial: Any) -> None:
        """Called when a trial continues from a checkpoint."""

    def log_trial_save(self, trial: Any) -> None:
        """Called when a checkpoint has been committed."""

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Called when a trial has reported."""

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        """Called when a trial has ended."""

    def on_trial_start(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Call `log_trial_start`."""
        self.log_trial_start(trial)

    def on_trial_restore(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Call `log_trial_restore`."""
        self.log_trial_restore(trial)

    def on_trial_save(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Call `log_trial_save`."""
        self.log_trial_save(trial)

    def on_trial_result(
        self, iteration: int, trials: Sequence[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Call `log_trial_result`."""
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Call `log_trial_end`."""
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: Sequence[Any], trial: Any, **info: Any) -> None:
        """Call `log_trial_end`."""
        self.log_trial_end(trial, failed=True)
