"""Garbage collection of runs, environments and leftovers that no run needs."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.files import disk_bytes, is_locked, lock
from windlass.core.process import identify
from windlass.core.tree import remove_tree
from windlass.core.units import format_duration
from windlass.record.state import State
from windlass.runs.archive.origin import is_imported
from windlass.runs.home import Home
from windlass.runs.index import Index, orphans
from windlass.runs.retention import readers
from windlass.runs.row import RunRow
from windlass.runs.store import RunFolder
from windlass.supervise.remote.gc import TRASH

__all__ = [
    "Kept",
    "Removal",
    "has_processes",
    "leftovers",
    "needs",
    "old_environments",
    "old_runs",
    "remove",
]

_HALF_MADE = re.compile(r"\..+\.(\d+)\.[0-9a-f]{8}\Z")
_LEFT_S = 3600.0
_MARKER = "complete.json"


Kind = Literal["run", "checkpoint", "environment", "image", "built data", "data", "left-over", "secrets", "index"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Item that can be removed, with the reason.

    Attributes:
        used_at: time of its marker; the item is kept if that has changed since; 0 if it is not checked.
        run, task: run and task of a checkpoint.
        site: site of `path`; this machine if empty.
    """

    kind: Kind
    path: Path
    num_bytes: int
    why: str = ""
    used_at: float = 0.0
    run: str = ""
    task: str = ""
    site: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Item that is kept, with the reason."""

    path: Path
    why: str
    kind: Kind = "environment"
    site: str = ""


def leftovers(home: Home) -> Iterator[Removal]:
    """Yield what killed commands left behind: partial runs, and secrets of finished runs."""
    for entry in os.scandir(home.runs):
        found = _HALF_MADE.match(entry.name)
        is_old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _LEFT_S
        is_orphan = found is not None and identify(int(found.group(1))) is None and is_old
        if entry.name.startswith(TRASH) or is_orphan:
            yield Removal(kind="left-over", path=Path(entry.path), num_bytes=disk_bytes(Path(entry.path)))
    yield from _old_secrets(home)
    yield from (Removal(kind="index", path=path, num_bytes=path.stat().st_size) for path in orphans())


def _old_secrets(home: Home) -> Iterator[Removal]:
    """Yield the delivered secrets of this home's finished runs; those of unknown runs are kept."""
    from windlass.secrets.delivery import delivery_folders  # lazy: imported where it is used once
    from windlass.supervise.remote.delivery import delivery_token

    files: list[Path] = []
    for folder in delivery_folders(home.path):
        with contextlib.suppress(OSError):  # missing, or owned by another user
            files += folder.iterdir()
    if not files:
        return
    ended = {row.id.replace(".", "_") for row in _rows(home) if row.is_terminal}
    for path in files:
        if path.is_file() and delivery_token(path) in ended:
            yield Removal(kind="secrets", path=path, num_bytes=path.stat().st_size)


def old_runs(home: Home, older_than_s: float) -> Iterator[Removal | Kept]:
    """Yield the runs that ended at least `older_than_s` ago, except unreadable and active runs.

    A run whose files another run uses as data is kept.
    """
    before = time.time() - older_than_s
    old = [row.id for row in _rows(home) if row.is_terminal and row.ended_at and row.ended_at <= before]
    reader = readers(home, besides=old) if old else None
    for run_id in old:
        run = RunFolder(home.runs / run_id)
        user = reader(run, "") if reader is not None else ""
        if user:
            yield Kept(path=run.path, why=f"{user} reads data from it", kind="run")
        else:
            yield Removal(kind="run", path=run.path, num_bytes=disk_bytes(run.path))


def old_environments(home: Home, older_than_s: float) -> Iterator[Removal | Kept]:
    """Yield every built environment: it can be removed if no run needs it and it was not used recently.

    Every run that did not succeed needs its environment, because it may be continued.
    """
    before, texts = time.time() - older_than_s, needs(home)
    for kind in ("envs", "overlays"):
        folder = home.cache / kind
        for place in sorted(folder.iterdir()) if folder.is_dir() else ():
            if not place.is_dir():
                continue
            why = _why_kept(place, texts, before)
            size = disk_bytes(place)
            yield Kept(path=place, why=why) if why else Removal(kind="environment", path=place, num_bytes=size)


def _why_kept(place: Path, texts: Mapping[str, str], before: float) -> str:
    """Return the reason to keep an environment, or an empty string if it can be removed."""
    if is_locked(_gate(place)):
        return "it is being built"
    users = [run for run, text in texts.items() if place.name in text]
    if users:
        others = f" and {len(users) - 1} more" if len(users) > 1 else ""
        return f"{users[0]}{others} may continue with it"
    marker = place / _MARKER
    used_at = (marker if marker.exists() else place).stat().st_mtime
    return "" if used_at <= before else f"used {format_duration(int(time.time() - used_at))} ago"


def needs(home: Home) -> dict[str, str]:
    """Return the text of the plan and places of every run that may continue."""
    found = {}
    for row in _rows(home):
        if row.state != State.SUCCEEDED:
            files = [home.runs / row.id / name for name in ("plan.json", "places.json")]
            found[f"{row.id} ({row.state})"] = "\n".join(
                path.read_text(errors="replace") for path in files if path.exists()
            )
    return found


def _rows(home: Home) -> list[RunRow]:
    index = Index(home)
    index.refresh()
    return index.dump()


def remove(removal: Removal, home: Home) -> bool:
    """Remove an item; return False if it is needed after all.

    Raises:
        WindlassError: the site of a run refuses or cannot be reached; nothing was removed on this machine.
    """
    if removal.kind == "run":
        return _remove_run(RunFolder(removal.path), home)
    if removal.kind == "environment":
        with lock(_gate(removal.path)):
            (removal.path / _MARKER).unlink(missing_ok=True)  # first, so that a partial folder never looks complete
            remove_tree(removal.path)
        return True
    if removal.kind == "index":
        removal.path.unlink(missing_ok=True)
        return True
    if removal.kind == "secrets":
        from windlass.supervise.remote.delivery import remove_delivery  # lazy: imported where it is used once

        remove_delivery(removal.path)
        return True
    if removal.path.is_dir():
        remove_tree(removal.path)
    else:
        removal.path.unlink(missing_ok=True)
    return True


def _remove_run(run: RunFolder, home: Home) -> bool:
    """While holding the lock of `retry` and `resume`, hide the run with one rename, then delete it."""
    trash = home.runs / f"{TRASH}{run.id}"
    with lock(run.path / "reconcile.lock"):
        if not run.facts().state.is_terminal or has_processes(run):
            return False
        if run.is_mirrored:
            _remove_at_site(run, home)
        os.rename(run.path, trash)
    remove_tree(trash)
    return True


def _remove_at_site(run: RunFolder, home: Home) -> None:
    """Remove a run's folder and secrets at its site, which refuses to while the run is active there."""
    from windlass.launcher.remote.mirror import mirror_of_run  # lazy: most runs are on this machine

    mirror = mirror_of_run(run, home)
    if mirror is not None and mirror.transport.has_server:
        mirror.remove_delivery()
        mirror.transport.request("clear", {"what": "run", "root": str(mirror.root)})


def has_processes(run: RunFolder) -> bool:
    """Return whether one of the run's guards or supervisors may still be alive."""
    from windlass.backends import JobState  # lazy: imported where it is used once
    from windlass.launcher.client import backend_of
    from windlass.launcher.submit import submission_of
    from windlass.plan.plan import Plan

    if is_imported(run):
        return False
    try:
        backend = backend_of(Plan.from_data(run.plan()))
        known = [submission_of(run, name, task.newest_job) for name, task in run.facts().tasks.items()]
        seen = backend.observe([submission for submission in known if submission is not None])
    except WindlassError:
        return True
    return any(observation.state is not JobState.GONE for observation in seen.values())


def _gate(place: Path) -> Path:
    """Return the path of the lock that is held while this environment is built."""
    return place.with_name(place.name + ".lock")
