"""What the checks look at: the files of this repository, as git sees them."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["IN_JOB_LAYERS", "ROOT", "python_files", "tracked_files"]

ROOT = Path(__file__).resolve().parent.parent

# These run in any image with Python 3.9 or newer, on the standard library alone.
IN_JOB_LAYERS = ("core", "record", "report", "supervise")


def tracked_files() -> list[Path]:
    """Files that are committed or would be, in order; ignored ones left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = (ROOT / name for name in sorted(set(listed.stdout.decode().split("\0"))) if name)
    return [path for path in paths if path.is_file()]


def python_files(folder: Path) -> list[Path]:
    """Python files below `folder`, in order."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
