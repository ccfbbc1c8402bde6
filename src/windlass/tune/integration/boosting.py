"""Code shared by the XGBoost and LightGBM callbacks, in which a round is an iteration and the model is one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.tune.integration.reporting import MetricNames, pick, report_with
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.session import report

__all__ = ["BoostingReport", "load_model"]

Postprocess = Callable[[dict[str, Any]], dict[str, Any]]


class BoostingReport:
    """Callback that reports metrics after each round, and the model every `frequency` rounds and at the end.

    Args:
        metrics: selection of metrics and their names; the library's names are `<data set>-<metric>`.
        filename: file name of the model in a checkpoint.
        frequency: rounds between two checkpoints; 0 saves only at the end.
        checkpoint_at_end: report the model with the last round.
        results_postprocessing_fn: function from the selected metrics to the reported ones.
    """

    def __init__(
        self,
        metrics: MetricNames,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Postprocess | None,
    ) -> None:
        self._metrics = metrics
        self._filename = filename
        self._frequency = frequency
        self._checkpoint_at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn

    def metrics_of(self, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the metrics to report, given values by data set and metric; from a list, the last value is used."""
        flat = {f"{data}-{name}": _last(value) for data, named in found.items() for name, value in named.items()}
        picked = pick(flat, self._metrics)
        return self._postprocess(picked) if self._postprocess is not None else picked

    def report_round(self, metrics: Mapping[str, Any], model: Any, num_rounds: int, *, is_last: bool) -> None:
        """Report a round, together with the model if a checkpoint is due."""
        is_due = self._frequency > 0 and num_rounds % self._frequency == 0
        if is_due or (is_last and self._checkpoint_at_end):
            report_with(metrics, self._filename, model.save_model)
        else:
            report(metrics)


def load_model(checkpoint: Checkpoint, filename: str, load: Callable[[str], Any]) -> Any:
    """Load the model from a checkpoint."""
    with checkpoint.as_directory() as folder:
        return load(str(Path(folder, filename)))


def _last(value: Any) -> Any:
    return value[-1] if isinstance(value, list) else value
