"""Callbacks for Keras: `model.fit(..., callbacks=[TuneReportCheckpointCallback()])`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.integration.reporting import MetricNames, need_library, pick, report_with
from windlass.tune.trainable.session import report

__all__ = ["TuneReportCheckpointCallback"]

_callbacks = need_library("keras.callbacks", "tensorflow.keras.callbacks")
_WITH_NUMBER = [
    f"{what}_{when}" for what in ("epoch", "train_batch", "test_batch", "predict_batch") for when in ("begin", "end")
]
_PLAIN = [f"{what}_{when}" for what in ("train", "test", "predict") for when in ("begin", "end")]


class TuneReportCheckpointCallback(_callbacks.Callback):  # type: ignore[name-defined, misc]
    """Callback that reports Keras's logs, and the model as a checkpoint.

    Args:
        checkpoint_on: events with which the model is reported, such as `epoch_end`.
        report_metrics_on: events with which metrics are reported.
        metrics: selection of metrics and their names.
        filename: file name of the model in a checkpoint.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: MetricNames = None,
        filename: str = "model.keras",
    ) -> None:
        super().__init__()
        self._metrics = metrics
        self._filename = filename
        self._checkpoint_on = _as_list(checkpoint_on)
        for event in {*self._checkpoint_on, *_as_list(report_metrics_on)}:
            if event not in (*_WITH_NUMBER, *_PLAIN):
                hint = f"available: {', '.join((*_WITH_NUMBER, *_PLAIN))}"
                raise BadValueError(f"Keras has no event {event!r}", hint=hint, code="invalid-value")
            setattr(self, f"on_{event}", self._handler(event))

    def _handler(self, event: str) -> Callable[..., None]:
        def with_number(number: int, logs: Mapping[str, Any] | None = None) -> None:
            del number
            self._report(event, logs or {})

        def plain(logs: Mapping[str, Any] | None = None) -> None:
            self._report(event, logs or {})

        return with_number if event in _WITH_NUMBER else plain

    def _report(self, event: str, logs: Mapping[str, Any]) -> None:
        metrics = pick(logs, self._metrics)
        if event in self._checkpoint_on:
            report_with(metrics, self._filename, self.model.save)
        else:
            report(metrics)


def _as_list(events: str | Sequence[str]) -> list[str]:
    return [events] if isinstance(events, str) else list(events)
