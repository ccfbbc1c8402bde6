"""Listing of a remote source, made before anything is fetched."""

from __future__ import annotations

from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.store.fetching import Blob

__all__ = ["Listing", "RemoteFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """File at a remote source.

    Attributes:
        path: within the source; empty for a source that is a single file.
        sha256: as stated by the source; empty if it is not.
    """

    path: str
    blob: Blob
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files at a remote source.

    Attributes:
        revision: identifies this state of the source: a commit or an etag; may be empty.
    """

    kind: Literal["file", "folder"]
    files: tuple[RemoteFile, ...]
    revision: str = ""
