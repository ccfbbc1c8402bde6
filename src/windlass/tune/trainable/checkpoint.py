"""A checkpoint as trials and people hold it: a folder, or the URL of one, that is made local when it is needed."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windlass.core.json_text import read_json
from windlass.tune.errors import BadValueError

__all__ = ["Checkpoint"]

_METADATA = ".metadata.json"


class Checkpoint:
    """A reference to a folder of files, local or remote; making one reads nothing.

    Args:
        path: a folder, or the URL of one (fsspec).
        filesystem: accepted for Ray's sake where it is None; the URL says where a checkpoint lies.
    """

    def __init__(self, path: str | Path, filesystem: object = None) -> None:
        if filesystem is not None:
            raise BadValueError(
                f"Checkpoint takes no filesystem, not {filesystem!r:.60}",
                hint="name the place in the path: Checkpoint('s3://bucket/folder')",
                code="checkpoint-filesystem",
            )
        self._path = str(path)

    @property
    def path(self) -> str:
        """Where it lies: a folder, or the URL of one."""
        return self._path

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        """The checkpoint in a local folder; nothing is copied until it is reported."""
        return cls(path)

    def to_directory(self, path: str | Path | None = None) -> str:
        """Copy it into a folder (a fresh temporary one without `path`); returns that folder.

        Raises:
            PreconditionError: the checkpoint is torn.
            NotFoundError: there is none.
        """
        from windlass.tune.storage import fetch  # lazy: a trial that keeps nothing does not need it

        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint-"))
        fetch(self._path, target)
        return str(target)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """A folder to read it from: its own if it is local, else a copy that goes with the block."""
        from windlass.tune.storage import is_url  # lazy: as above

        if not is_url(self._path):
            yield self._path
            return
        folder = tempfile.mkdtemp(prefix="checkpoint-")
        try:
            yield self.to_directory(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def get_metadata(self) -> dict[str, Any]:
        """The facts that `set_metadata` left in it; empty without."""
        with self.as_directory() as folder:
            path = Path(folder, _METADATA)
            found = read_json(path) if path.exists() else {}
        return dict(found)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Keep facts (JSON) with a checkpoint that was not reported yet; replaces earlier ones."""
        from windlass.tune.storage import is_url  # lazy: as above

        if is_url(self._path):
            raise BadValueError(
                f"{self._path} is committed, its metadata cannot change",
                hint="set it before the checkpoint is reported",
                code="checkpoint-committed",
            )
        Path(self._path, _METADATA).write_text(json.dumps(dict(metadata)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add to the facts that are kept with it."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return f"Checkpoint(path={self._path!r})"
