"""What a folder holds, for comparing two of them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["contents", "fingerprint"]


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """Every file below a folder: its kind (`-`, `x`, `l`) and its text."""
    found = {}
    for root, folders, names in os.walk(folder):
        if ".git" in folders:
            folders.remove(".git")
        for name in [*names, *(each for each in folders if (Path(root) / each).is_symlink())]:
            path = Path(root) / name
            key = str(path.relative_to(folder))
            if name == ".git":
                continue
            if path.is_symlink():
                found[key] = ("l", os.readlink(path))
            else:
                found[key] = (
                    "x" if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else "-",
                    path.read_bytes().hex(),
                )
    return found


def fingerprint(repository: Path) -> dict[str, bytes]:
    """Every byte of a repository's own files but its objects and our refs."""
    found = {}
    for root, _, names in os.walk(repository / ".git"):
        for name in names:
            path = Path(root) / name
            key = str(path.relative_to(repository / ".git"))
            if not key.startswith(("objects/", "refs/windlass/")):
                found[key] = path.read_bytes()
    return found
