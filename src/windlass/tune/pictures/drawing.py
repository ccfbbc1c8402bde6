"""Drawing of any kind of picture by its name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.pictures.canvas import style, write

__all__ = ["KINDS", "draw"]

KINDS = {
    "history": "windlass.tune.pictures.schedule:draw_history",
    "curves": "windlass.tune.pictures.schedule:draw_curves",
    "parallel": "windlass.tune.pictures.parameters:draw_parallel",
    "importance": "windlass.tune.pictures.parameters:draw_importance",
    "rungs": "windlass.tune.pictures.rungs:draw_rungs",
    "schedule": "windlass.tune.pictures.schedule:draw_schedule",
    "pareto": "windlass.tune.pictures.pareto:draw_pareto",
}


def draw(history: History | Path | str, kind: str, path: Path | str, **choices: Any) -> Path:
    """Draw a sweep to a file: `.png`, `.svg`, or `.html` with tooltips.

    Equal histories give equal bytes. The HTML file needs no network.

    Args:
        history: history of the sweep, or its folder.
        kind: `history`, `curves`, `parallel`, `importance`, `rungs`, `schedule` (PBT) or `pareto`.
        choices: `metric` and `mode` instead of the sweep's; for `pareto`, `metrics` and `modes`.

    Raises:
        UsageError: unknown kind (`unknown-name`) or suffix (`file-suffix`).
        MetricError: no metric is given (`unknown-metric`).
        BestTrialError: there is nothing to draw (`sweep-no-best`).
        PreconditionError: matplotlib is not installed (`extra-missing`).
    """
    if kind not in KINDS:
        raise UsageError(f"unknown picture {kind!r}", hint=f"available: {', '.join(KINDS)}", code="unknown-name")
    found = history if isinstance(history, History) else read_history(history)
    module, _, name = KINDS[kind].partition(":")
    with style():
        picture = getattr(importlib.import_module(module), name)(found, **choices)
        return write(picture, path)
