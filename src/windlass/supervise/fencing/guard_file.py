"""Path of the file that names a replica's guard and supervisor; separate since clients read it too."""

from __future__ import annotations

from pathlib import Path

__all__ = ["guard_path"]


def guard_path(job_folder: Path, rank: int) -> Path:
    """Return the file with the guard and supervisor of a replica."""
    return job_folder / f"guard-{rank}.json"
