"""Pictures of a sweep's progress: scores by trial, and learning curves."""

from __future__ import annotations

import math

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.pictures.canvas import (
    COLORS,
    INK,
    Picture,
    add_legend,
    axes_of,
    new_picture,
    pick_evenly,
    score_colors,
)
from windlass.tune.pictures.points import PlotObjective, PlottedTrial, is_log, objective_of, points_of, tip_of
from windlass.tune.results.rows import reports_of
from windlass.tune.trial import TrialStatus

__all__ = ["draw_curves", "draw_history"]

_MAX_CURVES = 150


def draw_history(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw the score of each trial in the order of suggestion, and the best score so far."""
    objective = objective_of(history, metric, mode)
    points = points_of(history, objective)
    picture = new_picture(f"{history.name}: {objective.metric} by trial")
    axes = axes_of(picture, "trial, in order of suggestion", objective.metric)
    for point in points:
        gid = f"trial-{point.trial.id}"
        axes.plot(point.trial.number, point.value, "o", color=COLORS[0], alpha=0.6, markersize=5, gid=gid)
        picture.tips[gid] = tip_of(point.trial, **{objective.metric: point.value})
    axes.plot([], [], "o", color=COLORS[0], alpha=0.6, label="a trial's newest value")
    best, steps = points[0].value, []
    for point in points:
        best = objective.best(best, point.value)
        steps.append(best)
    axes.step(
        [point.trial.number for point in points], steps, where="post", color=COLORS[1], linewidth=2, label="best so far"
    )
    failed = [trial.number for trial in history.trials.values() if trial.status is TrialStatus.ERROR]
    if failed:
        axes.plot(
            failed,
            [0.0] * len(failed),
            "x",
            color=INK,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label="failed",
        )
    if is_log([point.value for point in points]):
        axes.set_yscale("log")
    add_legend(axes)
    axes.locator_params(axis="x", integer=True)
    return picture


def draw_curves(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw the metric over training iterations, one line per trial, with a thick line for the best one."""
    objective = objective_of(history, metric, mode)
    points = points_of(history, objective)
    best = (max if objective.is_max else min)(points, key=lambda point: point.value)
    shown = pick_evenly(points, _MAX_CURVES)
    shown = shown if best in shown else [*shown, best]
    more = f" ({len(shown)} of {len(points)} trials)" if len(shown) < len(points) else ""
    picture = new_picture(f"{history.name}: learning curves{more}")
    axes = axes_of(picture, "training iteration", objective.metric)
    colors = score_colors([point.value for point in shown], is_max=objective.is_max)
    values: list[float] = []
    for point, color in zip(shown, colors, strict=True):
        x, y = _curve(point.trial, objective)
        values += y
        gid = f"trial-{point.trial.id}"
        is_best = point is best
        width, marker = (3.0, None) if is_best else (1.0, None if len(x) > 1 else ".")
        axes.plot(
            x, y, color=COLORS[1] if is_best else color, linewidth=width, marker=marker, zorder=3 if is_best else 2,
            alpha=1.0 if is_best else 0.75, gid=gid,
        )  # fmt: skip
        picture.tips[gid] = tip_of(point.trial, **{objective.metric: point.value, "iteration": point.trial.iteration})
    if is_log(values):
        axes.set_yscale("log")
    axes.plot([], [], color=COLORS[1], linewidth=3, label=f"best: trial {best.trial.id}")
    axes.plot([], [], color=score_colors([0, 1], is_max=True)[1], label="others, from better")
    axes.plot([], [], color=score_colors([0, 1], is_max=True)[0], label="to worse (newest value)")
    add_legend(axes)
    axes.locator_params(axis="x", integer=True)
    return picture


def _curve(trial: TrialHistory, objective: PlotObjective) -> tuple[list[int], list[float]]:
    """Return iterations and finite values.

    Iterations may decrease where the trial cloned another.
    """
    x, y = [], []
    for report in reports_of(trial):
        value = report.metrics.get(objective.metric)
        if isinstance(value, int | float) and math.isfinite(value):
            x.append(report.iteration)
            y.append(float(value))
    return x, y


def best_of(points: list[PlottedTrial], objective: PlotObjective) -> PlottedTrial:
    """Return the point with the best value, or the first one if several are equal."""
    return (max if objective.is_max else min)(points, key=lambda point: point.value)
