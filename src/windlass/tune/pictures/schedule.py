"""Picture of a schedule found by population based training: hyperparameters over iterations, with clones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.pictures.canvas import COLORS, MUTED, Picture, add_legend, new_picture
from windlass.tune.pictures.points import is_log, objective_of, points_of, tip_of
from windlass.tune.pictures.progress import best_of
from windlass.tune.results.columns import flatten
from windlass.tune.results.errors import BestTrialError
from windlass.tune.results.lineages import Exploit, lineage
from windlass.tune.results.rows import exploits_of

__all__ = ["draw_schedule", "segments_of"]

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
