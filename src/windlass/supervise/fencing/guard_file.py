"""Path of the file with a replica's guard and supervisor; a separate module, since clients read the file too."""

from __future__ import annotations

from pathlib import Path

__all__ = ["guard_path"]


def guard_path(job_folder: Path, rank: int) -> Path:
    """Return the path of the file with a replica's guard and supervisor."""
    return job_folder / f"guard-{rank}.json"
