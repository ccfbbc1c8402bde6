"""The zipapp for jobs, built once in a process of tests; each home of its own would build it for a third of a second."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from windlass.runs.home import Home
from windlass.supervise.archive import ensure_archive

__all__ = ["warm"]


def warm(home: Home) -> None:
    """Leave in a home's cache what an earlier launch would have left there. How it is built: tests/supervise."""
    name, content = _archive()
    folder = home.cache / "archives"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)


@cache
def _archive() -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = ensure_archive(Path(folder))
        return path.name, path.read_bytes()
