"""Target for TensorBoard, with one event file per trial and the tags of Ray Tune's logger. Needs no library."""

from __future__ import annotations

from typing import ClassVar

from windlass.trackers.tensorboard import header, hparams_end, hparams_start, scalars
from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.followers.target import FileTarget, plain_values, trial_path
from windlass.tune.results.columns import NestedMetrics, flatten, is_nan

__all__ = ["TensorBoardTarget"]

_NOT_SHOWN = ("config", "pid", "timestamp", "time_total_s", "training_iteration")
_TAG = "ray/tune/"


class TensorBoardTarget(FileTarget):
    """Target that writes `trials/<id>/events.out.tfevents.*`: `tensorboard --logdir <sweep>/trials` shows the sweep.

    Numbers become scalars at the trial's iteration (or its `timesteps_total`); drawn values become the HPARAMS page.
    Lists and NaN are omitted.
    """

    name = "tensorboard"
    patterns: ClassVar = ("trials/*/events.out.tfevents.*.windlass",)

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Add an event with all the numbers in the report."""
        path = _path(trial)
        if not self.begun(path):
            self.pieces.append(path, header(trial.suggested_at))
        step = int(result.get("timesteps_total") or result["training_iteration"])
        shown = plain_values({name: value for name, value in result.items() if name not in _NOT_SHOWN})
        values = {_TAG + name: value for name, value in shown.items() if not is_nan(value)}
        self.pieces.append(path, scalars(at, step, values))

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Add the trial's parameters and outcome."""
        if trial.last is None:
            return
        at = trial.ended_at or trial.suggested_at
        tags = [_TAG + name for name in plain_values(trial.last) if name not in _NOT_SHOWN]
        values = trial.assigned or flatten(trial.config)
        path = _path(trial)
        self.pieces.append(path, hparams_start(at, values, tags, trial.id))
        self.pieces.append(path, hparams_end(at, is_failed=is_failed))


def _path(trial: TrialHistory) -> str:
    return trial_path(trial, f"events.out.tfevents.{int(trial.suggested_at)}.windlass")
