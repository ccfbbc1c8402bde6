"""Where a replica's guard and supervisor are written down; apart from the guard, since clients read it too."""

from __future__ import annotations

from pathlib import Path

__all__ = ["guard_path"]


def guard_path(job_folder: Path, rank: int) -> Path:
    """Where a replica's guard and supervisor are written down, for observers and successors."""
    return job_folder / f"guard-{rank}.json"
