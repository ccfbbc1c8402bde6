"""`run:RUN/TASK/PATH`: an output of an earlier run, used where it lies and held against the manifest of its task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.record.manifest import read_manifest
from windlass.store.version import VersionEntry

__all__ = ["check_output", "resolve_output"]


def resolve_output(name: str, source: str, runs: Path) -> Path:
    """The path of an output; the run is named by its whole id.

    Raises:
        NotFoundError: no such run, task or file.
        PreconditionError: it leaves the run's output, or the task has not recorded it yet.
    """
    folder, inner = _parts(name, source, runs)
    if not folder.exists():
        raise NotFoundError(
            f"data `{name}`: no output `{folder.name}` of the run {folder.parent.parent.name} on this machine",
            hint=f"windlass show {folder.parent.parent.name}; at a site: windlass outputs fetch {folder.parent.parent.name}",
            code="data-missing",
        )
    path = folder / inner if inner else folder
    if not path.exists():
        raise NotFoundError(f"data `{name}`: no `{inner}` in {folder}", hint=f"ls {folder}", code="data-missing")
    resolved = path.resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise PreconditionError(
            f"data `{name}`: `{source}` is outside of its task's output",
            hint="use a path inside it",
            code="data-link-escapes",
        )
    return resolved


def check_output(name: str, source: str, runs: Path, entries: Sequence[VersionEntry]) -> None:
    """Raise when an output is not what its task recorded when it succeeded.

    Raises:
        PreconditionError: `no-output`, or `data-changed` with the files that differ.
    """
    folder, inner = _parts(name, source, runs)
    try:
        manifest = read_manifest(folder, is_beside=True)
    except NotFoundError as error:
        raise PreconditionError(
            f"data `{name}`: the task `{folder.name}` of {folder.parent.parent.name} recorded no output",
            hint="only tasks that succeed record one; `windlass show` tells how this one ended",
            code="no-output",
        ) from error
    recorded = {
        os.path.relpath(entry.path, inner) if inner else entry.path: entry.sha256
        for entry in manifest.entries
        if not inner or entry.path == inner or entry.path.startswith(f"{inner}/")
    }
    found = {entry.path or ".": entry.sha256 for entry in entries}
    changed = sorted(path for path in recorded.keys() | found.keys() if recorded.get(path) != found.get(path))
    if changed:
        more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
        listed = ", ".join(inner if path == "." else path for path in changed[:10])
        raise PreconditionError(
            f"data `{name}`: {folder} differs from what its task recorded: {listed}{more}",
            hint=f"windlass verify {folder.parent.parent.name}",
            code="data-changed",
        )


def _parts(name: str, source: str, runs: Path) -> tuple[Path, str]:
    """The folder of the task's output, and the path in it."""
    run, _, rest = source.removeprefix("run:").strip("/").partition("/")
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if parts and parts[0] == "out" and not (runs / run / "out" / "out").exists():
        parts = parts[1:]
    if not run or not parts or ".." in (run, *parts):
        raise PreconditionError(
            f"data `{name}`: `{source}` does not name an output of a run",
            hint="write `run:RUN/TASK` or `run:RUN/TASK/PATH`, such as `run:last/train/model`",
            code="data-missing",
        )
    return runs / run / "out" / parts[0], "/".join(parts[1:])
