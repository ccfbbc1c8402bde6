"""A run that begins from the checkpoint of another: its folder of checkpoints holds it, by hard links where it can."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from windlass.core.errors import NotFoundError
from windlass.record.manifest import FOLDER_MANIFEST, manifest_path
from windlass.runs.store import RunFolder

__all__ = ["seed"]

_PARTS = "checkpoints"


def seed(run: RunFolder, checkpoint: Path, task: str) -> Path:
    """Put a committed checkpoint among those of a run that has not started; returns its place there.

    Bytes are shared with the original by hard links, so cloning costs no space and no time; on another file system
    they are copied. The manifest comes last, as for every checkpoint.

    Args:
        task: whose checkpoint it is, where its place does not say so (`.../checkpoints/<task>/...`).

    Raises:
        NotFoundError: the checkpoint is not there any more.
    """
    if not checkpoint.exists():
        raise NotFoundError(
            f"the checkpoint {checkpoint} is gone",
            hint="`keep` in the sweep, or `windlass gc`, removed it; the trial begins anew when started by hand",
            code="checkpoint-missing",
        )
    target = run.checkpoints(_task_of(checkpoint) or task) / checkpoint.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.is_dir():
        _link_tree(checkpoint, target)
    else:
        _link(checkpoint, target)
    manifest = manifest_path(checkpoint)
    if manifest.exists():
        _link(manifest, manifest_path(target))
    return target


def _task_of(checkpoint: Path) -> str:
    parts = checkpoint.parts
    at = max((index for index, part in enumerate(parts) if part == _PARTS), default=-1)
    return parts[at + 1] if 0 <= at < len(parts) - 2 else ""


def _link_tree(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        there = target / os.path.relpath(folder, source)
        there.mkdir(parents=True, exist_ok=True)
        for name in files:
            if name != FOLDER_MANIFEST or Path(folder) != source:
                _link(Path(folder, name), there / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target, follow_symlinks=False)
