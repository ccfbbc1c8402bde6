"""Picture of how far each trial ran, with the rungs of ASHA and HyperBand."""

from __future__ import annotations

from collections import Counter

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.pictures.canvas import INK, MUTED, Picture, axes_of, new_picture, pick_evenly, score_colors
from windlass.tune.pictures.points import PlottedTrial, objective_of, points_of, tip_of
from windlass.tune.trial import TrialStatus

__all__ = ["draw_rungs", "rungs_of"]

_MAX_TRIALS = 120
_MAX_RUNGS = 8
_MARKS = {"stopped": "x", "paused": "|", "failed": "X", "done": "o", "running": ">"}


def draw_rungs(history: History, metric: str = "", mode: str = "") -> Picture:
    """Draw one line per trial up to its last iteration, longest first, with dotted lines for rungs and their counts."""
    objective = objective_of(history, metric, mode)
    points = points_of(history, objective)
    sign = -1.0 if objective.is_max else 1.0
    ranked = sorted(points, key=lambda point: (-point.trial.iteration, sign * point.value))
    shown: list[PlottedTrial] = pick_evenly(ranked, _MAX_TRIALS)
    more = f" ({len(shown)} of {len(points)} trials)" if len(shown) < len(points) else ""
    picture = new_picture(
        f"{history.name}: how far trials got{more}", height=max(3.6, min(9.0, 1.6 + 0.12 * len(shown)))
    )
    axes = axes_of(picture, "training iteration", f"trials, the longest and best in {objective.metric} first")
    colors = score_colors([point.value for point in shown], is_max=objective.is_max)
    for place, (point, color) in enumerate(zip(shown, colors, strict=True)):
        trial, gid = point.trial, f"trial-{point.trial.id}"
        axes.plot(
            [1, max(trial.iteration, 1)], [place, place], color=color, linewidth=2.2, solid_capstyle="butt", gid=gid
        )
        axes.plot(trial.iteration, place, _MARKS[_end_of(trial)], color=color, markersize=6, markeredgewidth=1.8)
        picture.tips[gid] = tip_of(
            trial, **{objective.metric: point.value, "iteration": trial.iteration, "now": _end_of(trial)}
        )
    top = max(point.trial.iteration for point in shown)
    rungs = [rung for rung in rungs_of(history) if rung <= top]
    for rung in rungs:
        reached = sum(point.trial.iteration >= rung for point in points)
        passed = sum(point.trial.iteration > rung for point in points)
        axes.axvline(rung, color=MUTED, linestyle=":", linewidth=1.2, zorder=1)
        axes.text(
            rung,
            1.01,
            f"{rung}\n{reached} to {passed}" if passed else f"{rung}\n{reached}",
            transform=axes.get_xaxis_transform(),
            ha="center",
            fontsize=8,
        )
    if top >= 10:
        axes.set_xscale("log")
        ticks = [*rungs, top] if rungs else [1, 3, 10, 30, 100, 300, 1000]
        axes.set_xticks([tick for tick in ticks if tick <= top], [str(tick) for tick in ticks if tick <= top])
        axes.minorticks_off()
    axes.invert_yaxis()
    axes.set_yticks([])
    axes.grid(visible=False)
    counts = Counter(_end_of(point.trial) for point in points)
    for word, mark in _MARKS.items():
        if counts[word]:
            axes.plot([], [], mark, color=INK, label=f"{word}: {counts[word]}")
    picture.figure.legend(loc="outside lower left", ncols=len(_MARKS), fontsize=9)
    return picture


def _end_of(trial: TrialHistory) -> str:
    if trial.status is TrialStatus.ERROR:
        return "failed"
    if trial.status is TrialStatus.PAUSED:
        return "paused"
    if trial.status is not TrialStatus.TERMINATED:
        return "running"
    stopped = any(made.decision == "stop" and made.by == "scheduler" for made in trial.decisions)
    return "stopped" if stopped else "done"


def rungs_of(history: History) -> list[int]:
    """Return the iterations at which the scheduler stopped or paused trials.

    If there are many, only those with two or more trials are returned.
    """
    counts: Counter[int] = Counter()
    for trial in history.trials.values():
        for made in trial.decisions:
            if made.by == "scheduler" and made.decision in ("stop", "pause") and made.iteration > 0:
                counts[made.iteration] += 1
    often = [iteration for iteration, count in counts.items() if count >= 2]
    return sorted(counts if len(counts) <= _MAX_RUNGS else often)[:_MAX_RUNGS]
