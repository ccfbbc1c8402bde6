"""Callbacks for XGBoost: `xgboost.train(..., callbacks=[TuneReportCheckpointCallback()])`."""

from __future__ import annotations

from typing import Any

from windlass.tune.integration.reporting import (
    BoostingReport,
    MetricNames,
    Postprocess,
    load_model,
    need_library,
    report_with,
)
from windlass.tune.trainable.checkpoint import Checkpoint

__all__ = ["TuneReportCheckpointCallback"]

_xgboost = need_library("xgboost")
_FILE = "model.ubj"


class TuneReportCheckpointCallback(_xgboost.callback.TrainingCallback, BoostingReport):  # type: ignore[name-defined, misc]
    """Callback that reports metrics and the model; see `BoostingReport` for the arguments."""

    def __init__(
        self,
        metrics: MetricNames = None,
        filename: str = _FILE,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        _xgboost.callback.TrainingCallback.__init__(self)
        BoostingReport.__init__(self, metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._newest: dict[str, Any] = {}
        self._saved_round = -1

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILE) -> Any:
        """Load the booster from a checkpoint."""

        def load(path: str) -> Any:
            booster = _xgboost.Booster()
            booster.load_model(path)
            return booster

        return load_model(checkpoint, filename, load)

    def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, dict[str, Any]]) -> bool:
        """Called by XGBoost after each round; training always continues."""
        self._newest = self.metrics_of(evals_log)
        self.report_round(self._newest, model, epoch + 1, is_last=False)
        if self._frequency and (epoch + 1) % self._frequency == 0:
            self._saved_round = epoch
        return False

    def after_training(self, model: Any) -> Any:
        """Called by XGBoost at the end, when the last round is known."""
        if self._checkpoint_at_end and model.num_boosted_rounds() - 1 != self._saved_round:
            report_with(self._newest, self._filename, model.save_model)
        return model
