"""Checkpoint of a trial: a folder, or a URL that is downloaded when it is read."""

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
    """Reference to a local or remote folder of files. Creating one reads nothing.

    Args:
        path: a folder, or the URL of one (fsspec).
        filesystem: must be None, for compatibility with Ray; use a URL as path.
    """

    def __init__(self, path: str | Path, filesystem: object = None) -> None:
        if filesystem is not None:
            raise BadValueError(
                f"Checkpoint(filesystem={filesystem!r:.60}) is not supported",
                hint="pass a URL as path: Checkpoint('s3://bucket/folder')",
                code="invalid-value",
            )
        self._path = str(path)

    @property
    def path(self) -> str:
        """Folder or URL."""
        return self._path

    @classmethod
    def from_directory(cls, path: str | Path) -> Checkpoint:
        """Return a reference to a local folder, which is not copied until it is reported."""
        return cls(path)

    def to_directory(self, path: str | Path | None = None) -> str:
        """Copy the checkpoint to a folder, by default a new temporary one, and return that folder.

        Raises:
            PreconditionError: the checkpoint is incomplete.
            NotFoundError: it does not exist.
        """
        from windlass.tune.storage import fetch  # lazy: trials without checkpoints do not need it

        target = Path(path) if path is not None else Path(tempfile.mkdtemp(prefix="checkpoint-"))
        fetch(self._path, target)
        return str(target)

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield a local folder with the checkpoint, which is a temporary copy if the checkpoint is remote."""
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
        """Return the metadata that `set_metadata` stored; empty if there is none."""
        with self.as_directory() as folder:
            path = Path(folder, _METADATA)
            found = read_json(path) if path.exists() else {}
        return dict(found)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Set the metadata (JSON) of a checkpoint before it is reported, replacing earlier metadata."""
        from windlass.tune.storage import is_url  # lazy: as above

        if is_url(self._path):
            raise BadValueError(
                f"checkpoint {self._path} is committed, so its metadata cannot be changed",
                hint="set metadata before the checkpoint is reported",
                code="invalid-value",
            )
        Path(self._path, _METADATA).write_text(json.dumps(dict(metadata)))

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add entries to the metadata."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and other._path == self._path

    def __hash__(self) -> int:
        return hash(self._path)

    def __repr__(self) -> str:
        return f"Checkpoint(path={self._path!r})"
