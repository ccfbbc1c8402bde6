"""Code shared by the callbacks: selecting metrics, and reporting them with checkpoints.

For XGBoost and LightGBM a round is an iteration, and the model is one file.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.tune.errors import BadValueError
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.session import report

__all__ = ["BoostingReport", "MetricNames", "load_model", "need_library", "pick", "report_with"]

MetricNames = str | Sequence[str] | Mapping[str, str] | None
"""None for all metrics, names to keep, or `{name to report: the library's name}`."""


def pick(found: Mapping[str, Any], names: MetricNames) -> dict[str, Any]:
    """Return those metrics that are to be reported.

    Raises:
        UsageError: the library has no metric with that name.
    """
    if not names:
        return dict(found)
    wanted = (
        names if isinstance(names, Mapping) else {name: name for name in ([names] if isinstance(names, str) else names)}
    )
    for theirs in wanted.values():
        if theirs not in found:
            near = nearest(theirs, found)
            hint = f"did you mean `{near}`?" if near else f"available: {', '.join(found) or 'none yet'}"
            raise BadValueError(f"the library has no metric `{theirs}`", hint=hint, code="unknown-metric")
    return {ours: found[theirs] for ours, theirs in wanted.items()}


def report_with(metrics: Mapping[str, Any], filename: str, write: Callable[[str], object]) -> None:
    """Report metrics with a checkpoint that consists of one file, which `write` creates at a given path."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        write(str(Path(folder, filename)))
        report(metrics, checkpoint=Checkpoint.from_directory(folder))


def need_library(*modules: str) -> Any:
    """Import and return the first of several modules that is installed.

    Raises:
        PreconditionError: none is installed.
    """
    for module in modules:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    package = modules[0].partition(".")[0]
    hint = f"pip install {package}"
    raise PreconditionError(f"this callback needs {package}, which is not installed", hint=hint, code="extra-missing")


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
