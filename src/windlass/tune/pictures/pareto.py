"""Scatter plot of two metrics, with the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windlass.tune.controller.journal.history import History
from windlass.tune.pictures.canvas import COLORS, Picture, add_legend, axes_of, new_picture
from windlass.tune.pictures.points import is_log, objective_of, tip_of
from windlass.tune.results.errors import BestTrialError, MetricError
from windlass.tune.results.scores import front_of, metric_names, score

__all__ = ["draw_pareto"]


def draw_pareto(history: History, metrics: Sequence[str] = (), modes: Sequence[str] = ()) -> Picture:
    """Draw every trial by its values of two metrics, with a line through the Pareto front.

    Raises:
        MetricError: the sweep has one metric, and no second one is given (`unknown-metric`).
        BestTrialError: no trial has both metrics (`sweep-no-best`).
    """
    names = tuple(metrics) or history.objectives.metrics
    if len(names) < 2:
        known = ", ".join(metric_names(history.trials.values())) or "nothing"
        raise MetricError(f"a Pareto front needs two metrics, not {len(names)}", hint=f"reported: {known}")
    own = [objective_of(history, name, mode).mode for name, mode in zip(names, [*modes, "", ""], strict=False)]
    (x_name, y_name), ways = names[:2], own[:2]
    picture = new_picture(f"{history.name}: {x_name} and {y_name}")
    axes = axes_of(picture, _label(x_name, ways[0]), _label(y_name, ways[1]))
    front = front_of(history, (x_name, y_name), ways)
    best = {trial.id for trial in front}
    points = {}
    for trial in history.trials.values():
        x, y = (score(trial, name, way, history) for name, way in zip((x_name, y_name), ways, strict=True))
        if all(isinstance(value, int | float) and math.isfinite(value) for value in (x, y)):
            points[trial.id] = (x, y)
            gid = f"trial-{trial.id}"
            color, size = (COLORS[1], 8) if trial.id in best else (COLORS[0], 5)
            axes.plot(
                x, y, "D" if trial.id in best else "o", color=color, markersize=size, alpha=0.85, gid=gid, zorder=3
            )
            picture.tips[gid] = tip_of(trial, **{x_name: x, y_name: y})
    if not points:
        raise BestTrialError(
            f"no trial reported finite values for both {x_name!r} and {y_name!r}", hint="see `windlass sweep show`"
        )
    line = [points[trial.id] for trial in front]
    axes.plot(
        [x for x, _ in line], [y for _, y in line], color=COLORS[1], linewidth=1.6, drawstyle="steps-post", zorder=2
    )
    axes.plot([], [], "D-", color=COLORS[1], label=f"front: {len(front)} trials")
    axes.plot([], [], "o", color=COLORS[0], label=f"others: {len(points) - len(front)}")
    for values, scale in (
        ([x for x, _ in points.values()], axes.set_xscale),
        ([y for _, y in points.values()], axes.set_yscale),
    ):
        if is_log(values):
            scale("log")
    add_legend(axes)
    return picture


def _label(name: str, mode: str) -> str:
    return f"{name} ({'more' if mode == 'max' else 'less'} is better)"
