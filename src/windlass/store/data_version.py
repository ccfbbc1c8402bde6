"""Version of data: an immutable dataset, described by a manifest of paths, sizes and digests.

A file's digest is the sha256 of its bytes. A folder's is the sha256 of its manifest: a line per entry, sorted by path,
`<mode> <size> <sha256> <path>`, with mode `-` plain, `x` executable, `l` symbolic link (size and digest of its text).
Names are escaped, so that they may contain any bytes. Links must stay inside the folder; empty folders are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json

__all__ = ["Version", "VersionEntry", "escape", "is_digest", "manifest_digest"]

_SCHEMA = 1
_PLAIN = re.compile(r"[A-Za-z0-9 /._=+,@%~-]*\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEntry:
    """Line in a version's manifest; the path is empty if the version is a single file.

    Attributes:
        mode: `-` plain, `x` executable, `l` symbolic link.
        link: target of a symbolic link; size and digest refer to the target's text.
    """

    path: str
    mode: str
    size_bytes: int
    sha256: str
    link: str = ""

    def __str__(self) -> str:
        return f"{self.mode} {self.size_bytes} {self.sha256} {escape(self.path)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Immutable dataset; equal content gives an equal digest.

    Attributes:
        name: name of the original file or folder, for display and for placed copies.
        source: origin of the data, for display.
        at: wall time of creation, in seconds.
    """

    kind: Literal["file", "folder"]
    entries: tuple[VersionEntry, ...]
    name: str = ""
    source: str = ""
    at: float = 0.0
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=lambda entry: os.fsencode(entry.path))))
        digest = self.entries[0].sha256 if self.kind == "file" else manifest_digest(self.entries)
        object.__setattr__(self, "digest", digest)

    @property
    def size_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(entry.size_bytes for entry in self.entries)

    @property
    def objects(self) -> dict[str, int]:
        """Return the sizes of all entries except links, by digest."""
        return {entry.sha256: entry.size_bytes for entry in self.entries if entry.mode != "l"}

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        files = [[e.mode, e.size_bytes, e.sha256, e.path, *([e.link] if e.mode == "l" else [])] for e in self.entries]
        stated = {"schema": _SCHEMA, "kind": self.kind, "name": self.name, "source": self.source, "at": self.at}
        return {**stated, "digest": self.digest, "files": files}

    def to_bytes(self) -> bytes:
        """Return the stored JSON form, which preserves any bytes in names."""
        return json.dumps(self.to_data(), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, digest: str) -> Version:
        """Decode `to_bytes`.

        Raises:
            ValueError: the content is damaged, is another version, or has a path outside the dataset.
        """
        try:
            return cls._from_data(decode_json(content), digest)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"invalid manifest: {error!r}") from error

    @classmethod
    def _from_data(cls, data: Mapping[str, Any], digest: str) -> Version:
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']} is not {_SCHEMA}")
        entries = tuple(
            VersionEntry(
                mode=row[0], size_bytes=row[1], sha256=row[2], path=row[3], link=row[4] if row[0] == "l" else ""
            )
            for row in data["files"]
        )
        if data["kind"] not in ("file", "folder") or _is_single(entries) != (data["kind"] == "file"):
            raise ValueError("its kind does not match its files")
        if data["kind"] == "folder":
            _check_paths(entries)
        _check_values(entries)
        version = cls(kind=data["kind"], entries=entries, name=data["name"], source=data["source"], at=data["at"])
        if version.digest != digest:
            raise ValueError(f"its content has the digest {version.digest}")
        return version


def manifest_digest(entries: Iterable[VersionEntry]) -> str:
    """Return the digest of a folder from its entries, sorted by path."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(str(entry).encode() + b"\n")
    return digest.hexdigest()


def escape(path: str) -> str:
    """Escape a path as it is written in a manifest."""
    if _PLAIN.match(path):
        return path  # the common case; escaping is ten times slower
    return json.dumps(os.fsencode(path).decode("utf-8", "backslashreplace"))[1:-1]


def is_digest(text: str) -> bool:
    """Return whether a string is a full sha256 in hex."""
    return _DIGEST.match(text) is not None


def _check_paths(entries: tuple[VersionEntry, ...]) -> None:
    """Check untrusted paths: none may lead outside the dataset's folder."""
    paths = {entry.path for entry in entries}
    if len(paths) != len(entries):
        raise ValueError("duplicate path")
    for entry in entries:
        parts = entry.path.split("/")
        if not entry.path or "\0" in entry.path or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"the path {entry.path!r} is outside the dataset")
        if any("/".join(parts[:index]) in paths for index in range(1, len(parts))):
            raise ValueError(f"{entry.path!r} is below a file")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.link))
        if entry.link.startswith("/") or target == ".." or target.startswith("../"):
            raise ValueError(f"the link {entry.path!r} points outside the dataset")


def _check_values(entries: tuple[VersionEntry, ...]) -> None:
    for entry in entries:
        if entry.mode not in ("-", "x", "l") or not is_digest(entry.sha256):
            raise ValueError(f"{entry.path!r} has no digest")
        if entry.mode == "l":
            text = os.fsencode(entry.link)
            if (len(text), hashlib.sha256(text).hexdigest()) != (entry.size_bytes, entry.sha256):
                raise ValueError(f"the link {entry.path!r} does not match its digest")
        elif type(entry.size_bytes) is not int or entry.size_bytes < 0:
            raise ValueError(f"{entry.path!r} has no size")


def _is_single(entries: tuple[VersionEntry, ...]) -> bool:
    return len(entries) == 1 and entries[0].path == "" and entries[0].mode != "l"
