"""Pictures of a sweep over time: scores by trial, learning curves, and schedules of population based training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.pictures.canvas import (
    COLORS,
    INK,
    MUTED,
    Picture,
    add_legend,
    axes_of,
    new_picture,
    pick_evenly,
    score_colors,
)
from windlass.tune.pictures.points import PlotObjective, PlottedTrial, is_log, objective_of, points_of, tip_of
from windlass.tune.results.columns import flatten
from windlass.tune.results.errors import BestTrialError
from windlass.tune.results.lineages import Exploit, lineage
from windlass.tune.results.rows import exploits_of, reports_of
from windlass.tune.trial import TrialStatus

__all__ = ["draw_curves", "draw_history", "draw_schedule", "segments_of"]

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


_MAX_PANELS = 4
Segment = tuple[int, int, Any]


def draw_schedule(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw one panel per parameter that changed; the orange line is the schedule of the best trial.

    Raises:
        BestTrialError: no trial cloned another (`sweep-no-best`).
    """
    exploits = lineage(history)
    names = _changed_names(exploits)
    if not names:
        raise BestTrialError(
            "no trial was cloned from another, so there is no schedule",
            hint="this picture is for population based training (PBT, PB2)",
            code="sweep-no-best",
        )
    objective = objective_of(history, metric, mode)
    best = best_of(points_of(history, objective), objective).trial
    picture = new_picture(
        f"{history.name}: schedule, {len(exploits)} clones", height=1.0 + 2.4 * min(len(names), _MAX_PANELS)
    )
    panels: Any = picture.figure.subplots(min(len(names), _MAX_PANELS), 1, sharex=True, squeeze=False)
    for panel, name in zip(panels[:, 0], names, strict=False):
        _draw_panel(panel, picture, history, exploits, name, best)
    panels[-1, 0].set_xlabel("training iteration")
    return picture


def _changed_names(exploits: list[Exploit]) -> list[str]:
    """Return the numeric parameters that changed, in the order of their first change."""
    names: dict[str, None] = {}
    for exploit in exploits:
        for name in exploit.changed:
            value = flatten(exploit.new_config).get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                names.setdefault(name)
    return list(names)


def _draw_panel(
    panel: Any, picture: Picture, history: History, exploits: list[Exploit], name: str, best: TrialHistory
) -> None:
    values: list[float] = []
    for trial in history.trials.values():
        for place, (begin, end, value) in enumerate(segments_of(trial, name)):
            gid = f"trial-{trial.id}-{place}-{name}"
            panel.plot([begin, end], [value, value], color=COLORS[0], linewidth=1.3, alpha=0.55, gid=gid)
            picture.tips[gid] = tip_of(trial, **{name: value, "iterations": f"{begin} to {end}"})
            values.append(value)
    for exploit in exploits:
        old, new = (flatten(config).get(name) for config in (exploit.source_config, exploit.new_config))
        if isinstance(old, int | float) and isinstance(new, int | float):
            gid = f"clone-{exploit.trial}-{exploit.iteration}-{name}"
            where = [exploit.checkpoint_iteration] * 2
            panel.plot(where, [old, new], color=MUTED, linewidth=0.9, marker=".", markevery=[1], gid=gid)
            picture.tips[gid] = f"trial {exploit.trial} cloned trial {exploit.source}\n{name}  {old:.5g} -> {new:.5g}"
    x, y = _schedule(history, exploits, best, name)
    panel.plot(x, y, color=COLORS[1], linewidth=2.6, zorder=4)
    if is_log(values):
        panel.set_yscale("log")
    panel.set_ylabel(name)
    if not panel.get_subplotspec().rowspan.start:
        panel.plot([], [], color=COLORS[1], linewidth=2.6, label=f"what led to the best, trial {best.id}")
        panel.plot([], [], color=COLORS[0], alpha=0.55, label="a trial")
        panel.plot([], [], color=MUTED, marker=".", label="clone, with a new value")
        add_legend(panel)


def segments_of(trial: TrialHistory, name: str) -> list[Segment]:
    """Return (first iteration, last iteration, value) for each value that a parameter of a trial has had."""
    made = exploits_of(trial)
    configs: list[Mapping[str, Any]] = [one.facts["old_config"] for one in made] + [trial.config]
    begins = [0, *(one.facts["source"]["iteration"] for one in made)]
    ends = [*(one.iteration for one in made), trial.iteration]
    rows = zip(begins, ends, configs, strict=True)
    found = ((begin, end, flatten(config).get(name)) for begin, end, config in rows)
    return [(begin, end, value) for begin, end, value in found if isinstance(value, int | float)]


def _schedule(history: History, exploits: list[Exploit], best: TrialHistory, name: str) -> tuple[list[int], list[Any]]:
    """Return the values that led to a trial's newest state, traced through all trials from which it was cloned."""
    pieces: list[Segment] = []
    trial, end, before = best, best.iteration, float("inf")
    while True:
        own = [one for one in exploits if one.trial == trial.id and one.at < before]
        config = own[-1].new_config if own else _first_config(trial)
        begin = own[-1].checkpoint_iteration if own else 0
        pieces.append((begin, end, flatten(config).get(name)))
        if not own:
            break
        trial, end, before = history.trials[own[-1].source], begin, own[-1].at
    x: list[int] = []
    y: list[Any] = []
    for begin, last, value in reversed(pieces):
        x += [begin, last]
        y += [value, value]
    return x, y


def _first_config(trial: TrialHistory) -> Mapping[str, Any]:
    made = exploits_of(trial)
    return made[0].facts["old_config"] if made else trial.config
