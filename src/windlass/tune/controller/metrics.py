"""Which metrics a sweep is decided by, and the check that trials report them."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.tune.controller.settings import SweepSettings
from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.stopper.limits import metrics_of
from windlass.tune.stopper.protocol import Stopper
from windlass.tune.trial import Metrics

__all__ = ["check_metrics", "metric_of", "wanted_metrics"]


def metric_of(settings: SweepSettings, scheduler: SweepScheduler) -> tuple[str, bool]:
    """The first metric and whether more is better: the sweep's, else the scheduler's; `-` where nothing was named."""
    if settings.objectives.metrics:
        return settings.objectives.metrics[0], settings.objectives.is_max[0]
    return (scheduler.metric or "-"), scheduler.mode != "min"


def wanted_metrics(
    settings: SweepSettings, metric: str, scheduler: SweepScheduler | None = None, stopper: Stopper | None = None
) -> tuple[str, ...]:
    """What the first report must hold: what the sweep is for, and what scheduler and stopper decide by."""
    names = (
        *settings.objectives.metrics,
        settings.half.metric,
        metric,
        *getattr(scheduler, "times", ()),
        *metrics_of(stopper),
    )
    return tuple(dict.fromkeys(name for name in names if name not in ("", "-", "done"))) if settings.is_strict else ()


def check_metrics(metrics: Metrics, wanted: Sequence[str]) -> None:
    """See whether the first report of a sweep holds what it is decided by.

    Raises:
        UsageError: it does not (`unknown-metric`).
    """
    missing = [name for name in wanted if name not in metrics]
    if missing:
        reported = ", ".join(f"`{name}`" for name in metrics)
        raise BadValueError(
            f"no trial reports `{missing[0]}`; the first report has {reported}",
            hint=f"name one of them in its place, or report `{missing[0]}` from the first report on",
            code="unknown-metric",
        )
