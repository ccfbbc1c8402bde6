"""Copies of a task's output, which can be resumed and are checked against the manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory, sha256_file, write_atomic
from windlass.record.manifest import FILE_SUFFIX, Manifest, ManifestEntry

__all__ = ["copy_folder", "send_folder"]

_PIECE_BYTES = 1 << 20
_URL = re.compile(r"[a-z][a-z0-9+.-]*(?:::|://)|(?:s3|gs):", re.IGNORECASE)


def copy_folder(source: Path, manifest: Manifest, target: Path, *, is_linked: bool = False) -> None:
    """Copy the files in a manifest, then the manifest itself as `<target>.manifest.json`. Blocking; idempotent.

    Args:
        is_linked: create hard links if the file system supports it; both names then share their bytes.

    Raises:
        PreconditionError: a file differs from its record (`output-changed`), or a different file exists
            (`already-exists`).
        OSError: there is not enough space, or access is denied.
    """
    manifest_file = target.with_name(target.name + FILE_SUFFIX)
    _check_free(target, manifest, manifest_file)
    target.mkdir(parents=True, exist_ok=True)
    for entry in manifest.entries:
        place = target / entry.path
        if not _is_there(place, entry):
            place.parent.mkdir(parents=True, exist_ok=True)
            _bring(source / entry.path, entry, place, is_linked=is_linked)
    fsync_directory(target)
    write_atomic(manifest_file, _text(manifest))


def _check_free(target: Path, manifest: Manifest, manifest_file: Path) -> None:
    """Raise if a copy would overwrite different files; call this before any file is written."""
    for entry in manifest.entries:
        place = target / entry.path
        if os.path.lexists(place) and not _is_there(place, entry):
            raise _exists(place, "already exists with different content")
    if manifest_file.exists() and manifest_file.read_bytes() != _text(manifest):
        raise _exists(manifest_file, "belongs to another output")


def _exists(place: Path, what: str) -> PreconditionError:
    hint = "choose another folder with --to, or move the file"
    return PreconditionError(f"{place} {what}", hint=hint, code="already-exists")


def _is_there(place: Path, entry: ManifestEntry) -> bool:
    if entry.link:
        return place.is_symlink() and os.readlink(place) == entry.link
    is_file = place.is_file() and not place.is_symlink()
    return is_file and place.stat().st_size == entry.size and sha256_file(place) == entry.sha256


def _bring(source: Path, entry: ManifestEntry, place: Path, *, is_linked: bool) -> None:
    part = place.with_name(f".{place.name}.windlass-part")
    part.unlink(missing_ok=True)
    if entry.link:
        os.symlink(entry.link, part)
    elif is_linked and _linked(source, entry, part):
        pass
    else:
        _copy(source, entry, part)
    os.rename(part, place)


def _linked(source: Path, entry: ManifestEntry, part: Path) -> bool:
    try:
        os.link(source, part)
    except OSError:
        return False
    if sha256_file(part) != entry.sha256:
        part.unlink()
        raise _changed(source)
    return True


def _copy(source: Path, entry: ManifestEntry, part: Path) -> None:
    with open(source, "rb") as file, open(part, "xb") as copy:
        copy.writelines(_checked(source, file, entry))
        copy.flush()
        os.fsync(copy.fileno())
    found = source.stat()
    part.chmod(found.st_mode & 0o777)
    os.utime(part, ns=(found.st_atime_ns, found.st_mtime_ns))


def _checked(source: Path, file: BinaryIO, entry: ManifestEntry) -> Iterator[bytes]:
    """Yield the pieces of a file, then raise if they differ from the record."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE_BYTES):
        digest.update(piece)
        yield piece
    if digest.hexdigest() != entry.sha256:
        raise _changed(source)


def _changed(source: Path) -> PreconditionError:
    message = f"{source} does not match its sha256 in the manifest"
    return PreconditionError(message, hint="list all differences: windlass verify RUN", code="output-changed")


def _text(manifest: Manifest) -> bytes:
    return json.dumps(manifest.to_data(), indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def send_folder(source: Path, manifest: Manifest, to: str, name: str) -> str:
    """Copy the files in a manifest to `to/name`, a folder or an fsspec URL. Blocking; idempotent.

    At a URL, symbolic links exist only in the manifest.

    Raises:
        PreconditionError: see `copy_folder`; or the URL's library is not installed (`extra-missing`).
        AccessError, NotFoundError, UnreachableError: the destination refuses, or fails repeatedly.
    """
    if not _URL.match(to) or to.startswith("file://"):
        target = Path(to.removeprefix("file://")).expanduser().absolute() / name
        copy_folder(source, manifest, target)
        return str(target)
    from windlass.store.fetching import retry  # lazy: as above
    from windlass.store.remote_files import file_system  # lazy: an extra, and slow to import

    system, root = file_system(to)
    there = f"{root.rstrip('/')}/{name}"
    listing = f"{there}{FILE_SUFFIX}"
    url = f"{to.rstrip('/')}/{name}"
    found: list[bytes] = []
    retry(url, lambda: found.append(_content(system, listing)))
    if found[-1] == _text(manifest):
        return url
    for entry in manifest.entries:
        if not entry.link:
            send = partial(_send, system, source / entry.path, entry, f"{there}/{entry.path}")
            retry(f"{url}/{entry.path}", send)
    retry(url, lambda: system.pipe_file(listing, _text(manifest)))
    return url


def _content(system: Any, path: str) -> bytes:
    try:
        found: bytes = system.cat_file(path)
    except FileNotFoundError:
        return b""
    return found


def _send(system: Any, source: Path, entry: ManifestEntry, there: str) -> None:
    """Send a file unless it exists; object stores list only complete files."""
    if system.exists(there) and system.size(there) == entry.size and _digest(system, there) == entry.sha256:
        return
    if sha256_file(source) != entry.sha256:
        raise _changed(source)
    system.makedirs(there.rpartition("/")[0], exist_ok=True)
    system.put_file(os.fspath(source), there)
    if system.size(there) != entry.size:
        message = f"{there} has {system.size(there)} bytes instead of {entry.size}"
        raise PreconditionError(message, hint="push again", code="output-changed")


def _digest(system: Any, there: str) -> str:
    digest = hashlib.sha256()
    with system.open(there, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
