"""Listing of a remote source, before anything of it is fetched."""

from __future__ import annotations

from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.store.fetching import Blob

__all__ = ["Listing", "RemoteFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """File of a source.

    Attributes:
        path: within the source; empty for a source that is a single file.
        sha256: where the source itself states it; else empty.
    """

    path: str
    blob: Blob
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files of a source.

    Attributes:
        revision: what names this state of it: a commit, an etag; may be empty.
    """

    kind: Literal["file", "folder"]
    files: tuple[RemoteFile, ...]
    revision: str = ""
