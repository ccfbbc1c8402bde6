"""Lookup of sweeps by name, in `<WINDLASS_HOME>/sweeps`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.core.files import is_locked
from windlass.core.names import nearest
from windlass.runs.home import Home
from windlass.runs.store import find as find_run
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.cluster.record import SweepPlace, is_on_cluster
from windlass.tune.sweep.record import RECORD, sweeps_folder

if TYPE_CHECKING:
    from windlass.tune.controller.journal.history import History

__all__ = ["SweepRow", "SweepWatch", "find_sweep", "has_head", "list_sweeps", "row_of", "sweep_names"]

_NUM_LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """Row of `windlass sweep ls`.

    Attributes:
        state: running (it has a head), interrupted (no head, but not over), over, damaged (its journal cannot be
            read), or empty if it never started.
        counts: number of trials by status.
    """

    name: str
    folder: Path
    state: str
    counts: dict[str, int]
    metric: str = ""
    best: float | None = None
    best_trial: str = ""
    created_at: float = 0.0
    why: str = ""


def sweep_names(home: Home) -> list[str]:
    """Return the names of all sweeps, sorted."""
    try:
        with os.scandir(sweeps_folder(home)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and _is_sweep(Path(entry.path)))
    except FileNotFoundError:
        return []


def _is_sweep(folder: Path) -> bool:
    return (folder / RECORD).exists() or SweepFolder(folder).head_journal.exists()


def find_sweep(ref: str, home: Home | None = None) -> Path:
    """Return a sweep's folder, given its name, a unique start or end of its name, `last`, or a path.

    Raises:
        UsageError: several sweeps match.
        NotFoundError: no sweep matches; the hint has the nearest name.
    """
    home = home or Home.default()
    if os.sep in ref and _is_sweep(Path(ref)):
        return Path(ref).absolute()
    names = sweep_names(home)
    root = sweeps_folder(home)
    if ref in names:
        return root / ref
    if ref == "last" and names:
        return max((root / name for name in names), key=lambda folder: folder.stat().st_mtime)
    found = [name for name in names if ref and (name.startswith(ref) or name.endswith(ref))]
    if len(found) == 1:
        return root / found[0]
    if found:
        listed = ", ".join(found[:_NUM_LISTED]) + (" ..." if len(found) > _NUM_LISTED else "")
        raise UsageError(
            f"`{ref}` matches {len(found)} sweeps: {listed}", hint="give more letters", code="ambiguous-name"
        )
    run = _run_of(home, ref)
    if run:
        message, hint = (
            f"`{ref}` is a run, not a sweep",
            f"windlass show {run}; stop, resume, retry and logs take it too",
        )
        raise NotFoundError(message, hint=hint, code="sweep-not-found")
    close = nearest(ref, names)
    hint = f"did you mean `{close}`?" if close else "`windlass sweep ls` lists them"
    raise NotFoundError(f"no sweep `{ref}`", hint=hint, code="sweep-not-found")


def _run_of(home: Home, ref: str) -> str:
    """Return the id of the run that matches `ref`, or an empty string if none or several do."""
    try:
        return find_run(home, ref).id
    except (NotFoundError, UsageError):
        return ""


def has_head(folder: Path) -> bool:
    """Return whether the sweep has a head, which holds the lock on its journal; on a cluster, what it last replied."""
    if is_on_cluster(folder):
        return SweepPlace.read(folder).is_running
    path = SweepFolder(folder).head_journal
    return path.exists() and is_locked(path)


def list_sweeps(home: Home | None = None) -> list[SweepRow]:
    """Return all sweeps in this home, newest first. Reads every journal."""
    home = home or Home.default()
    rows = [_row_or_damage(sweeps_folder(home) / name) for name in sweep_names(home)]
    return sorted(rows, key=lambda row: row.created_at, reverse=True)


def _row_or_damage(folder: Path) -> SweepRow:
    """Return the row of a sweep, even if its journal is damaged."""
    try:
        return row_of(folder)
    except PreconditionError as error:
        at = folder.stat().st_mtime
        return SweepRow(name=folder.name, folder=folder, state="damaged", counts={}, created_at=at, why=error.message)


def row_of(folder: Path) -> SweepRow:
    """Return the row of a sweep. Reads its journal."""
    return SweepWatch(folder).row()


class SweepWatch:
    """Reader that repeatedly returns a sweep's row; each call reads only new records, and no reports are kept."""

    def __init__(self, folder: Path) -> None:
        from windlass.tune.controller.journal.history import History  # lazy: finding a sweep needs no history
        from windlass.tune.controller.journal.stream import JournalStream  # lazy: as above

        self._folder = folder
        self._history = History(keeps_reports=False)
        self._stream = JournalStream(SweepFolder(folder))

    def row(self) -> SweepRow:
        """Return the current row."""
        for piece in self._stream.pieces():
            for record in piece:
                self._history.add(record)
        return _row(self._folder, self._history)


def _row(folder: Path, history: History) -> SweepRow:
    if history.settings is None:
        return SweepRow(name=folder.name, folder=folder, state="", counts={}, created_at=folder.stat().st_mtime)
    objectives = history.objectives
    metric, is_max = (objectives.metrics[0], objectives.is_max[0]) if objectives.metrics else ("", False)
    best = None
    best_trial = ""
    for trial in history.trials.values():
        value = (trial.last or {}).get(metric)
        is_number = isinstance(value, int | float) and value == value  # noqa: PLR0124 - not NaN
        if is_number and (best is None or (value > best if is_max else value < best)):
            best, best_trial = value, trial.id
    state = "over" if history.ended_why else "running" if has_head(folder) else "interrupted"
    return SweepRow(
        name=folder.name,
        folder=folder,
        state=state,
        counts={str(status): number for status, number in history.counts.items() if number},
        metric=metric,
        best=best,
        best_trial=best_trial,
        created_at=history.created_at,
        why=history.ended_why,
    )
