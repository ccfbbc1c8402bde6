"""Callbacks for LightGBM: `lightgbm.train(..., callbacks=[TuneReportCheckpointCallback()])`."""

from __future__ import annotations

from typing import Any

from windlass.tune.integration.reporting import BoostingReport, MetricNames, Postprocess, load_model, need_library
from windlass.tune.trainable.checkpoint import Checkpoint

__all__ = ["TuneReportCheckpointCallback"]

_lightgbm = need_library("lightgbm")
_FILE = "model.txt"


class TuneReportCheckpointCallback(BoostingReport):
    """Callback that reports metrics and the model; see `BoostingReport` for the arguments."""

    order = 20
    before_iteration = False

    def __init__(
        self,
        metrics: MetricNames = None,
        filename: str = _FILE,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Postprocess | None = None,
    ) -> None:
        super().__init__(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = _FILE) -> Any:
        """Load the booster from a checkpoint."""
        return load_model(checkpoint, filename, lambda path: _lightgbm.Booster(model_file=path))

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        found: dict[str, dict[str, Any]] = {}
        for data, name, value, _, *deviation in env.evaluation_result_list:
            named = found.setdefault(data, {})
            named[f"{name}-mean" if deviation else name] = value
            if deviation:
                named[f"{name}-stdv"] = deviation[0]
        metrics = self.metrics_of(found)
        self.report_round(metrics, env.model, env.iteration + 1, is_last=env.iteration == env.end_iteration - 1)
