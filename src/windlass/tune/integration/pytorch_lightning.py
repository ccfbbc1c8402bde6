"""Callbacks for PyTorch Lightning: `Trainer(callbacks=[TuneReportCheckpointCallback()])`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.integration.reporting import MetricNames, need_library, pick, report_with
from windlass.tune.trainable.session import report

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

_lightning = need_library("lightning.pytorch", "pytorch_lightning")


class TuneReportCheckpointCallback(_lightning.Callback):  # type: ignore[name-defined, misc]
    """Callback that reports Lightning's metrics together with a checkpoint, except during the sanity check.

    Args:
        metrics: selection of metrics and their names.
        filename: name of the checkpoint file.
        save_checkpoints: False reports only metrics.
        on: Lightning's hooks without `on_`, such as `validation_end` or `train_epoch_end`.
    """

    def __init__(
        self,
        metrics: MetricNames = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        super().__init__()
        self._metrics = metrics
        self._filename = filename
        self._saves = save_checkpoints
        for hook in [on] if isinstance(on, str) else on:
            if not hasattr(_lightning.Callback, f"on_{hook}"):
                hint = "use for example 'validation_end' or 'train_epoch_end'"
                raise BadValueError(f"Lightning has no hook {hook!r}", hint=hint, code="invalid-value")
            setattr(self, f"on_{hook}", self._handler())

    def _handler(self) -> Callable[..., None]:
        def handle(trainer: Any, *rest: Any, **more: Any) -> None:
            del rest, more
            self._report(trainer)

        return handle

    def _report(self, trainer: Any) -> None:
        if trainer.sanity_checking:
            return
        metrics = pick({name: value.item() for name, value in trainer.callback_metrics.items()}, self._metrics)
        if not metrics:
            return
        if self._saves:
            report_with(metrics, self._filename, trainer.save_checkpoint)
        else:
            report(metrics)


class TuneReportCallback(TuneReportCheckpointCallback):
    """Callback that reports metrics without checkpoints."""

    def __init__(self, metrics: MetricNames = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)
