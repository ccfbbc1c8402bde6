"""Path of the file about a replica's guard; a separate module, since clients read the file too."""

from __future__ import annotations

from pathlib import Path

__all__ = ["GAVE_UP", "guard_path"]

GAVE_UP = "gave-up-{}"
"""File of a replica whose guard gave up on a crashing supervisor; the guard was not killed."""


def guard_path(job_folder: Path, rank: int) -> Path:
    """Return the path of the file that names a replica's guard and supervisor."""
    return job_folder / f"guard-{rank}.json"
