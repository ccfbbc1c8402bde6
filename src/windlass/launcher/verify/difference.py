"""Differences between two runs, including changed code and data files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.core.json_text import read_json
from windlass.launcher.archive.plan import plan_here
from windlass.pin.code.comparing import FileChange, changes_between
from windlass.plan.plan import Plan
from windlass.runs.compare.run_differences import Area, Difference, diff
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["explained"]

_MAX_LISTED = 10


def explained(run_a: RunFolder, run_b: RunFolder, home: Home) -> list[Difference]:
    """Return the differences between two runs by cause, with the changed files of code and data where known.

    Raises:
        NotFoundError: a run has no plan.
        PreconditionError: a document is damaged.
    """
    found = diff(run_a, run_b)
    try:
        plans = plan_here(run_a), plan_here(run_b)
    except WindlassError:  # another version: the comparison of plain values is still valid
        return found
    return [_explained(difference, run_a, plans, home) for difference in found]


def _explained(difference: Difference, run: RunFolder, plans: tuple[Plan, Plan], home: Home) -> Difference:
    if difference.path == "code.commit":
        return _with_files(difference, run, plans, home)
    if difference.cause is Area.DATA and difference.path.endswith(".digest"):
        name = difference.path.removeprefix("data.").removesuffix(".digest")
        return _with_entries(difference, name, plans, home)
    return difference


def _with_files(difference: Difference, run: RunFolder, plans: tuple[Plan, Plan], home: Home) -> Difference:
    """Add the files that differ between two commits, counted like `git diff --stat`."""
    before, after = (plan.pins.code for plan in plans)
    try:
        base = Path(str(run.provenance().get("base", ".")))
        folder = base / str(plans[0].experiment.get("code", "."))
        changes = changes_between(before, after, folder, store=home.cache / "code.git") if folder.is_dir() else None
    except WindlassError:
        changes = None
    if changes is None:
        return replace(difference, details=("files unknown: no repository here has both commits",))
    data = _data_files(changes, plans)
    shown = [each for each in changes if each.path not in data]
    return replace(difference, details=_listed(shown), files=tuple(change.path for change in shown))


def _data_files(changes: list[FileChange], plans: tuple[Plan, Plan]) -> set[str]:
    """Return the changed files that are the experiment's data, to be reported as data."""
    pins = [(pin, plans[1].pins.data.get(name)) for name, pin in plans[0].pins.data.items()]
    sources = [
        pin.source.removeprefix("file:").removeprefix("./").rstrip("/")
        for pin, other in pins
        if pin.source.startswith("file:") and other is not None and other.digest != pin.digest
    ]
    return {
        each.path for each in changes if any(each.path == name or each.path.startswith(f"{name}/") for name in sources)
    }


def _listed(changes: list[FileChange]) -> tuple[str, ...]:
    added = sum(max(change.num_added, 0) for change in changes)
    deleted = sum(max(change.num_deleted, 0) for change in changes)
    noun = "file" if len(changes) == 1 else "files"
    lines = [f"{len(changes)} {noun} changed, +{added} -{deleted}", *map(str, changes[:_MAX_LISTED])]
    return (*lines, *([f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else []))


def _with_entries(difference: Difference, name: str, plans: tuple[Plan, Plan], home: Home) -> Difference:
    """Add the changed files of two data folders, if their manifests or versions are available."""
    pins = [plan.pins.data.get(name) for plan in plans]
    if any(pin is None or pin.kind != "folder" for pin in pins):
        return difference
    sides = [_manifest(home, pin.digest) for pin in pins if pin is not None]
    if any(side is None for side in sides):
        return difference
    before, after = (side or {} for side in sides)
    changes = [f"M {path}" for path in sorted(before.keys() & after.keys()) if before[path] != after[path]]
    changes += [f"D {path}" for path in sorted(before.keys() - after.keys())]
    changes += [f"A {path}" for path in sorted(after.keys() - before.keys())]
    more = [f"and {len(changes) - _MAX_LISTED} more"] if len(changes) > _MAX_LISTED else []
    return replace(
        difference, details=(*changes[:_MAX_LISTED], *more), files=tuple(change.partition(" ")[2] for change in changes)
    )


def _manifest(home: Home, digest: str) -> Mapping[str, str] | None:
    """Return a folder's entries by path; None if neither its manifest nor its version is available."""
    try:
        lines = read_json(home.cache / "digests" / "manifests" / f"{digest}.json")
    except (OSError, ValueError):
        lines = _stored(home, digest)
    return {str(line).split(" ", 3)[3]: str(line) for line in lines} if isinstance(lines, list) else None


def _stored(home: Home, digest: str) -> list[str] | None:
    from windlass.store.local import LocalStore  # lazy: most data is not in the store

    try:
        return [str(entry) for entry in LocalStore.of(home.path).read(digest).entries]
    except WindlassError:
        return None
