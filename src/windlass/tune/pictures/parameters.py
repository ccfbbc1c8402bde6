"""Pictures of parameters: parallel coordinates with the score, and importance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windlass.tune.controller.journal.history import History
from windlass.tune.pictures.canvas import (
    COLORS,
    GRID,
    INK,
    MUTED,
    Picture,
    axes_of,
    new_picture,
    pick_evenly,
    score_colors,
)
from windlass.tune.pictures.points import PlottedTrial, is_log, objective_of, points_of, tip_of
from windlass.tune.results.importance import importances
from windlass.tune.results.why import format_value

__all__ = ["draw_importance", "draw_parallel"]

_MAX_LINES = 300
_MAX_AXES = 10
_MAX_LABELS = 8


@dataclass(frozen=True, slots=True)
class _Scale:
    """Vertical axis that maps values to 0..1, with labels."""

    name: str
    places: list[float]
    ticks: list[tuple[float, str]]


def draw_parallel(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw one line per trial through its parameters to its score; better trials are brighter and on top."""
    objective = objective_of(history, metric, mode)
    points = points_of(history, objective)
    sign = 1.0 if objective.is_max else -1.0
    shown: list[PlottedTrial] = pick_evenly(sorted(points, key=lambda point: -sign * point.value), _MAX_LINES)[::-1]
    names = list(dict.fromkeys(name for point in shown for name in point.values))
    names = [name for name in names if len({repr(point.values.get(name)) for point in shown}) > 1 or len(names) == 1]
    more = f" ({len(shown)} of {len(points)} trials)" if len(shown) < len(points) else ""
    scales = [_scale(name, [point.values.get(name) for point in shown]) for name in names[:_MAX_AXES]]
    scales.append(_scale(objective.metric, [point.value for point in shown]))
    picture = new_picture(f"{history.name}: parameters and {objective.metric}{more}", width=max(8.0, 1.5 * len(scales)))
    axes = picture.figure.add_subplot()
    colors = score_colors([point.value for point in shown], is_max=objective.is_max)
    for place, (point, color) in enumerate(zip(shown, colors, strict=True)):
        gid = f"trial-{point.trial.id}"
        heights = [scale.places[place] for scale in scales]
        axes.plot(
            range(len(scales)), heights, color=color, linewidth=1.3, alpha=0.8, gid=gid, zorder=2 + place / len(shown)
        )
        picture.tips[gid] = tip_of(point.trial, **{objective.metric: point.value})
    for x, scale in enumerate(scales):
        axes.axvline(x, color=MUTED, linewidth=1.0, zorder=4)
        for y, label in scale.ticks:
            axes.plot([x - 0.015, x], [y, y], color=MUTED, linewidth=1.0, zorder=4)
            box = {"boxstyle": "round,pad=0.15", "facecolor": "#ffffff", "edgecolor": "none", "alpha": 0.75}
            axes.text(x - 0.03, y, label, ha="right", va="center", fontsize=8, zorder=5, bbox=box, color=INK)
    axes.set_xticks(range(len(scales)), [scale.name for scale in scales])
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(scales) - 0.9)
    axes.set_ylim(-0.04, 1.04)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    return picture


def _scale(name: str, values: Sequence[Any]) -> _Scale:
    numbers = [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        return _by_name(name, values)
    low, high = min(numbers), max(numbers)
    if low == high:
        return _Scale(name, [0.5] * len(values), [(0.5, format_value(low))])
    if len(set(numbers)) <= _MAX_LABELS and all(isinstance(one, int) for one in values):
        marks = sorted(set(numbers))
    elif is_log(numbers):
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = max(1, (last - first) // 5)
        marks = [low, *(10.0**power for power in range(first + 1, last, step)), high]
        marks = [mark for mark in marks if low <= mark <= high]
    else:
        marks = [low + (high - low) * part / 4 for part in range(5)]
    is_logarithmic = is_log(numbers)

    def place(value: float) -> float:
        if is_logarithmic:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    ticks = [(place(mark), f"{mark:.3g}") for mark in marks]
    return _Scale(name, [place(number) for number in numbers], _apart(ticks))


def _apart(ticks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Drop labels that would overlap, but keep the first and the last."""
    kept = ticks[:1]
    for tick in ticks[1:-1]:
        if tick[0] - kept[-1][0] > 0.06 and ticks[-1][0] - tick[0] > 0.06:
            kept.append(tick)
    return [*kept, *ticks[-1:]] if len(ticks) > 1 else kept


def _by_name(name: str, values: Sequence[Any]) -> _Scale:
    labels = sorted({format_value(value) for value in values})
    where = {label: (place + 0.5) / len(labels) for place, label in enumerate(labels)}
    ticks = [(where[label], label) for label in pick_evenly(labels, 12)]
    return _Scale(name, [where[format_value(value)] for value in values], ticks)


def draw_importance(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw one bar per parameter with the fraction of the score that it explains."""
    objective = objective_of(history, metric, mode)
    shares = list(importances(history, metric=objective.metric, mode=objective.mode).items())[:20][::-1]
    picture = new_picture(
        f"{history.name}: importance for {objective.metric}", height=max(2.2, 1.2 + 0.36 * len(shares))
    )
    axes = axes_of(picture, "share of score variance explained (%)", "")
    bars = axes.barh([name for name, _ in shares], [100 * share for _, share in shares], color=COLORS[0], height=0.65)
    for (name, share), bar in zip(shares, bars, strict=True):
        gid = f"parameter-{name}"
        bar.set_gid(gid)
        picture.tips[gid] = f"{name}  {share:.1%}"
        axes.text(
            100 * share + 0.8,
            bar.get_y() + bar.get_height() / 2,
            f"{100 * share:.0f}",
            va="center",
            fontsize=9,
            color=INK,
        )
    axes.set_xlim(0, max(110 * max((share for _, share in shares), default=1.0), 10))
    axes.grid(visible=True, axis="x", color=GRID)
    axes.grid(visible=False, axis="y")
    return picture
