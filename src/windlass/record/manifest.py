"""Manifest of a folder or a file: sizes and checksums, so that an incomplete or changed copy is never trusted.

The manifest of a checkpoint folder is `manifest.json` inside it, so that it moves with the folder. The manifest of a file
is `<file>.manifest.json` beside it, and so is that of a folder with only user content (`is_beside`). It is written last,
after all the data is on disk, so its presence is the commit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import fsync_directory, sha256_file, write_atomic
from windlass.core.json_text import read_json
from windlass.core.tree import walk

__all__ = [
    "FILE_SUFFIX",
    "FOLDER_MANIFEST",
    "Manifest",
    "ManifestEntry",
    "build_manifest",
    "commit_manifest",
    "differences",
    "list_entries",
    "manifest_path",
    "read_manifest",
]

FOLDER_MANIFEST = "manifest.json"
FILE_SUFFIX = ".manifest.json"
SCHEMA = 1
_NUM_WORKERS = 8
_PARALLEL_BYTES = 64 << 20


@dataclass(frozen=True)
class ManifestEntry:
    """Entry for a file in a manifest.

    Attributes:
        path: relative to the folder, with `/`; for a single file, its name.
        size: bytes.
        sha256: hex digest of the content; for a symbolic link, of the target path.
        link: target of a symbolic link, which is recorded and never followed; empty for a file.
    """

    path: str
    size: int
    sha256: str
    link: str = ""


@dataclass(frozen=True)
class Manifest:
    """Contents of a folder or a file, sorted by path; `step` is a checkpoint's training step, or -1."""

    entries: tuple[ManifestEntry, ...]
    step: int = -1
    at: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Return the total size of all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def digest(self) -> str:
        """Return the hex sha256 over all entries, which depends only on the content, not on place or time."""
        import hashlib  # lazy: here and below, importing OpenSSL adds 4 ms to a supervisor's start

        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(json.dumps([entry.path, entry.size, entry.sha256, entry.link]).encode("ascii") + b"\n")
        return digest.hexdigest()

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        files = [
            {"path": e.path, "size": e.size, "sha256": e.sha256, **({"link": e.link} if e.link else {})}
            for e in self.entries
        ]
        return {"schema": SCHEMA, "step": self.step, "at": self.at, "digest": self.digest, "files": files}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Manifest:
        """Decode `to_data`; raises ValueError if the digest does not match the entries."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']} is not {SCHEMA}")
        entries = tuple(ManifestEntry(f["path"], f["size"], f["sha256"], f.get("link", "")) for f in data["files"])
        manifest = cls(entries, data["step"], data["at"])
        if manifest.digest != data["digest"]:
            raise ValueError("the digest does not match the entries")
        return manifest


def manifest_path(path: Path, *, is_beside: bool = False) -> Path:
    """Return the path of a folder's or file's manifest."""
    is_inside = not is_beside and path.is_dir()
    return path / FOLDER_MANIFEST if is_inside else path.with_name(path.name + FILE_SUFFIX)


def build_manifest(
    path: Path, *, step: int = -1, at: float = 0.0, is_durable: bool = False, is_beside: bool = False
) -> Manifest:
    """Build the manifest of a folder or file by reading every byte.

    An existing manifest, sockets and the like are left out.

    Args:
        is_durable: also sync every file and folder to disk.

    Raises:
        NotFoundError: `path` does not exist.
        OSError: something cannot be read.
    """
    if not path.exists():
        raise NotFoundError(f"no such file or folder: {path}", code="file-not-found")
    found = [(path.name, str(path))]
    if path.is_dir():
        found = [(name, os.path.join(str(path), name)) for name in list_entries(path, is_beside=is_beside)]
    total = sum(os.lstat(full).st_size for _, full in found)
    if total < _PARALLEL_BYTES or len(found) < 2:
        entries = [_entry(name, full, is_durable) for name, full in found]
    else:
        from concurrent.futures import ThreadPoolExecutor  # lazy: only large folders need it

        with ThreadPoolExecutor(min(_NUM_WORKERS, os.cpu_count() or 1)) as pool:
            entries = list(pool.map(lambda item: _entry(item[0], item[1], is_durable), found))
    if is_durable and path.is_dir():
        for folder in reversed([folder for folder, _, _ in walk(path)]):
            fsync_directory(Path(folder))
        fsync_directory(path.absolute().parent)
    return Manifest(tuple(entries), step, at)


def list_entries(root: Path, *, is_beside: bool = False) -> list[str]:
    """Return the sorted relative paths of all files and symbolic links below a folder, except its manifest."""
    found = []
    for folder, folders, files in walk(root, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in files + links:
            full = os.path.join(folder, name)
            if os.path.islink(full) or os.path.isfile(full):
                found.append(os.path.relpath(full, str(root)))
    return sorted(name for name in found if is_beside or name != FOLDER_MANIFEST)


def _raise(error: OSError) -> None:
    raise error


def _entry(name: str, full: str, is_durable: bool) -> ManifestEntry:
    if os.path.islink(full):
        import hashlib  # lazy: see above

        link = os.readlink(full)
        content = os.fsencode(link)
        return ManifestEntry(name, len(content), hashlib.sha256(content).hexdigest(), link)
    if is_durable:
        _fsync(full)
    digest = sha256_file(Path(full))
    return ManifestEntry(name, os.stat(full).st_size, digest)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit_manifest(path: Path, *, step: int = -1, at: float = 0.0, is_beside: bool = False) -> Manifest:
    """Sync a folder or file to disk, then write its manifest atomically. Blocking; idempotent.

    Raises:
        NotFoundError: `path` does not exist.
        PreconditionError: a user's file has the manifest's name.
        OSError: the disk is full or something cannot be read; no new manifest was written.
    """
    where = manifest_path(path, is_beside=is_beside)
    _refuse_foreign(where)
    manifest = build_manifest(path, step=step, at=at, is_durable=True, is_beside=is_beside)
    text = json.dumps(manifest.to_data(), indent=1, ensure_ascii=True)
    write_atomic(where, text.encode("ascii") + b"\n")
    return manifest


def _refuse_foreign(where: Path) -> None:
    try:
        content = read_json(where)
    except (FileNotFoundError, ValueError):
        return
    if not isinstance(content, dict) or not {"schema", "digest", "files"} <= set(content):
        hint = f"give your file another name: windlass keeps the checksums of a checkpoint in {where.name}"
        raise PreconditionError(f"{where} is in the way", hint=hint, code="already-exists")


def read_manifest(path: Path, *, is_beside: bool = False) -> Manifest:
    """Read the manifest of a folder or file.

    Raises:
        NotFoundError: there is no manifest.
        PreconditionError: the manifest is damaged.
    """
    where = manifest_path(path, is_beside=is_beside)
    try:
        return Manifest.from_data(read_json(where))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} has no manifest ({where.name})", code="checkpoint-damaged") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreconditionError(f"{where} is damaged: {error}", code="checkpoint-damaged") from error


def differences(path: Path, manifest: Manifest, *, reads: bool = True) -> list[tuple[str, str]]:
    """Return a (relative path, problem) pair for each file that differs from the manifest.

    Additional files are ignored.

    Sizes are compared before anything is read, so a torn copy is detected quickly.

    Args:
        reads: also compare contents; otherwise only types and sizes.
    """
    found = []
    for entry in manifest.entries:
        full = os.path.join(str(path), entry.path) if path.is_dir() else str(path)
        problem = _difference(entry, full, reads)
        if problem:
            found.append((entry.path, problem))
    return found


def _difference(entry: ManifestEntry, full: str, reads: bool) -> str:
    if not os.path.lexists(full):
        return "missing"
    if os.path.islink(full) != bool(entry.link):
        return "became a link" if not entry.link else "is no longer a link"
    if entry.link:
        return "" if os.readlink(full) == entry.link else f"links to {os.readlink(full)} instead of {entry.link}"
    if not os.path.isfile(full):
        return "is not a file any more"
    size = os.stat(full).st_size
    if size != entry.size:
        return f"has {size} bytes instead of {entry.size}"
    return "" if not reads or sha256_file(Path(full)) == entry.sha256 else "has other content (sha256)"
