"""Folders of any depth, without the recursion that makes Python 3.11's `os.walk` fail at 1000 levels."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

__all__ = ["remove_tree", "walk"]


def walk(
    root: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a tree from the top like `os.walk`, without recursion.

    A caller may remove names from the list of folders.
    """
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        folders: list[str] = []
        others: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if entry.is_dir() else others).append(entry.name)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            continue
        yield folder, folders, others
        paths = [os.path.join(folder, name) for name in folders]
        pending += [path for path in reversed(paths) if not os.path.islink(path)]


def remove_tree(path: str | Path) -> None:
    """Remove a folder and everything below it, except what cannot be removed."""
    try:
        shutil.rmtree(str(path), ignore_errors=True)
    except RecursionError:
        for folder, folders, others in reversed(list(walk(path))):
            for name in (*others, *folders):
                with contextlib.suppress(OSError):  # a folder that is not a link is empty now, and is removed below
                    os.unlink(os.path.join(folder, name))
            with contextlib.suppress(OSError):
                os.rmdir(folder)
