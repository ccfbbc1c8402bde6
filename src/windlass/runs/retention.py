"""Retention rules of a run (`retain:`): which checkpoints stay, and which other runs read the run's files.

Deciding is pure; `held_checkpoints` and `readers` read the disk. `launcher.gc.retain_rules` removes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from windlass.config.loading import from_data
from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.runs.home import Home
from windlass.runs.metrics import MetricPoint
from windlass.runs.store import RunFolder, find, run_ids
from windlass.spec import KeptCheckpoints, Retain
from windlass.supervise.remote.checkpoint_files import CheckpointFiles, find_checkpoints

__all__ = [
    "RetentionDecision",
    "choose",
    "held_checkpoints",
    "note_removed",
    "pattern_of",
    "readers",
    "removed",
    "rules_of",
]

_RECORD = "retention.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDecision:
    """Decision to keep or remove a checkpoint, with the reason."""

    held: CheckpointFiles
    is_kept: bool
    why: str


def rules_of(run: RunFolder) -> Retain:
    """Return a run's retention rules; the default keeps everything.

    Raises:
        NotFoundError, PreconditionError, SpecError: its plan cannot be read.
    """
    experiment = run.plan().get("experiment")
    stated = experiment.get("retain") if isinstance(experiment, Mapping) else None
    return from_data(Retain, stated, source=run.id) if isinstance(stated, dict) else Retain()


def held_checkpoints(run: RunFolder, task: str) -> list[CheckpointFiles]:
    """Return a task's local checkpoints, oldest first: those with a manifest, and those that match its pattern."""
    return find_checkpoints(run.checkpoints(task), pattern_of(run, task))


def pattern_of(run: RunFolder, task: str) -> str:
    """Return the pattern in the plan for a task's checkpoint files; if empty, only checkpoints with a manifest count."""
    tasks = run.plan().get("tasks")
    for each in tasks if isinstance(tasks, list) else ():
        if isinstance(each, dict) and each.get("name") == task and isinstance(each.get("settings"), dict):
            return str(each["settings"].get("checkpoint_pattern", ""))
    return ""


def choose(
    held: Sequence[CheckpointFiles],
    rule: KeptCheckpoints,
    series: Sequence[MetricPoint] = (),
    *,
    needed: Mapping[Path, str] | None = None,
) -> list[RetentionDecision]:
    """Return a decision about each checkpoint; pure.

    If the metric was never reported, all stay: its name may be misspelt. The value of a checkpoint is the last one
    reported at or before its step.

    Args:
        held: oldest first, as `held_checkpoints` returns them.
        series: values of the rule's metric.
        needed: reasons for checkpoints that stay regardless of the rule.
    """
    if rule.last is None and rule.best is None:
        return [RetentionDecision(held=each, is_kept=True, why="no rule") for each in held]
    why = dict(needed or {})
    for rank, each in enumerate(reversed(held), start=1):
        if rule.last is not None and rank <= rule.last:
            why.setdefault(each.path, f"one of the last {rule.last}")
    if rule.best is not None and not series:
        why |= {each.path: f"`{rule.best.metric}` was never reported" for each in held if each.path not in why}
    elif rule.best is not None:
        sign = 1.0 if rule.best.mode == "min" else -1.0
        rated = [(sign * value, -each.step, each) for each in held if (value := _value(series, each.step)) is not None]
        rated.sort(key=lambda item: item[:2])
        for value, _, each in rated[: rule.best.keep]:
            why.setdefault(each.path, f"best {rule.best.metric}: {sign * value:.6g}")
    return [
        RetentionDecision(held=each, is_kept=each.path in why, why=why.get(each.path, _without(rule))) for each in held
    ]


def _value(series: Sequence[MetricPoint], step: int) -> float | None:
    """Return the last value of a metric at or before a step; None if there is none or it is not finite."""
    before = [point for point in series if 0 <= point.step <= step]
    value = max(before, key=lambda point: (point.step, point.time)).value if before else math.nan
    return value if math.isfinite(value) else None


def _without(rule: KeptCheckpoints) -> str:
    kept = [f"the last {rule.last}"] if rule.last is not None else []
    if rule.best is not None:
        kept.append(f"the best {rule.best.keep} by {rule.best.metric} ({rule.best.mode})")
    return f"not among {' or '.join(kept)}"


def note_removed(run: RunFolder, decisions: Sequence[RetentionDecision], at: float) -> None:
    """Record the checkpoints that the rules remove, before their removal, so that they do not count as lost."""
    known = removed(run)
    known |= {str(each.held.path): each.why for each in decisions}
    write_json(run.path / _RECORD, {"schema": 1, "at": at, "removed": known})


def removed(run: RunFolder) -> dict[str, str]:
    """Return why the rules removed checkpoints, by path."""
    try:
        content = read_json(run.path / _RECORD)
    except FileNotFoundError:
        return {}
    found = content.get("removed") if isinstance(content, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def readers(home: Home, *, besides: Collection[str] = ()) -> Callable[[RunFolder, str], str]:
    """Return a function that finds another run that reads a run's files.

    It takes a run and a path in its folder (`out`, `checkpoints/train`; empty for all), and returns the id of a run whose
    data comes from there (`run:` or `file:` sources), or an empty string.

    Args:
        besides: runs that do not count, since they are removed too.
    """
    uses = [use for run_id in run_ids(home) if run_id not in besides for use in _uses(home, run_id)]

    def reader(run: RunFolder, below: str) -> str:
        place = run.path / below if below else run.path
        for user, path in uses:
            if user != run.id and (path.is_relative_to(place) or place.is_relative_to(path)):
                return user
        return ""

    return reader


def _uses(home: Home, run_id: str) -> Iterator[tuple[str, Path]]:
    """Yield a (run, path in another run's folder) pair for each data pin of a run that refers to another run."""
    run = RunFolder(home.runs / run_id)
    try:
        pins = run.plan().get("pins")
        base = Path(str(run.provenance().get("base", "/")))
    except WindlassError:
        return
    data = pins.get("data") if isinstance(pins, dict) else None
    for pin in data.values() if isinstance(data, dict) else ():
        source = str(pin.get("source", "")) if isinstance(pin, Mapping) else ""
        if source.startswith("run:"):
            ref, _, below = source.removeprefix("run:").partition("/")
            try:
                yield run_id, find(home, ref).path / below
            except WindlassError:
                continue
        elif source.startswith("file:"):
            path = Path(os.path.realpath(base / Path(source.removeprefix("file:")).expanduser()))
            if path.is_relative_to(os.path.realpath(home.runs)):
                yield run_id, home.runs / path.relative_to(os.path.realpath(home.runs))
