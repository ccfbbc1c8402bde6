"""Checkpoints on disk: list them, find the newest intact one, delete them atomically."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.tree import remove_tree
from windlass.record.facts import step_in_name
from windlass.record.manifest import FILE_SUFFIX, FOLDER_MANIFEST, differences, read_manifest

__all__ = ["CheckpointFiles", "delete", "find_checkpoints", "move_to_trash", "newest_intact", "trashed"]

_ASIDE = ".windlass-gc-"
_HIDDEN = "."


@dataclass(frozen=True)
class CheckpointFiles:
    """Checkpoint on disk, with or without a manifest.

    Attributes:
        step: training step; without a manifest, the last number in its name.
        at: wall time of the commit.
        is_committed: whether it has a manifest, and does not only match the task's pattern.
    """

    path: Path
    step: int
    at: float
    is_committed: bool


def find_checkpoints(folder: Path, pattern: str) -> list[CheckpointFiles]:
    """Return a task's checkpoints, oldest first: those with a manifest, and those that match `pattern`, if any."""
    if not folder.is_dir():
        return []
    found = {held.path: held for held in _committed(folder)}
    for path in sorted(folder.glob(pattern)) if pattern else ():
        step = step_in_name(path.name)
        is_part = any(parent in found for parent in (path, *path.parents)) or path.name.endswith(FILE_SUFFIX)
        if step >= 0 and not is_part and not path.name.startswith(_HIDDEN):
            found[path] = CheckpointFiles(path=path, step=step, at=path.lstat().st_mtime, is_committed=False)
    return sorted(found.values(), key=lambda held: (held.step, held.at, held.path))


def _committed(folder: Path) -> Iterator[CheckpointFiles]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.name.endswith(FILE_SUFFIX):
            path = entry.with_name(entry.name[: -len(FILE_SUFFIX)])
        elif (entry / FOLDER_MANIFEST).is_file():
            path = entry
        else:
            continue
        try:
            manifest = read_manifest(path) if os.path.lexists(path) else None
        except WindlassError:
            continue  # a damaged folder is not a checkpoint, and not ours to remove
        if manifest is not None:
            yield CheckpointFiles(path=path, step=manifest.step, at=manifest.at, is_committed=True)


def newest_intact(held: Sequence[CheckpointFiles], *, reads: bool = True) -> CheckpointFiles | None:
    """Return the newest checkpoint whose files match its manifest; one without a manifest counts as intact.

    Args:
        held: checkpoints, oldest first.
        reads: whether to compare contents, which reads them completely; otherwise only sizes.
    """
    for each in reversed(held):
        if not each.is_committed:
            return each
        try:
            if not differences(each.path, read_manifest(each.path), reads=reads):
                return each
        except (OSError, WindlassError):
            continue
    return None


def move_to_trash(path: Path, folder: Path) -> None:
    """Hide a checkpoint atomically by renaming it; then move its manifest, if that is a separate file."""
    aside = folder / f"{_ASIDE}{os.getpid()}-{path.name}"
    os.rename(path, aside)
    manifest = path.with_name(path.name + FILE_SUFFIX)
    if manifest.exists():
        os.rename(manifest, aside.with_name(aside.name + FILE_SUFFIX))


def trashed(folder: Path) -> list[Path]:
    """Return the paths to which `move_to_trash` moved a task's checkpoints."""
    return sorted(folder.glob(f"{_ASIDE}*"))


def delete(path: Path) -> None:
    """Delete a file or a folder; idempotent."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
