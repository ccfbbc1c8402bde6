"""Placed versions: read-only trees of links into the store, created atomically for programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.files import fsync_directory, lock, write_atomic
from windlass.core.json_text import read_json
from windlass.store.data_version import Version, VersionEntry
from windlass.store.local import LocalStore
from windlass.store.objects import no_space
from windlass.store.reading import in_batches, sha256_of

__all__ = ["check_placed", "place", "placed_path", "remove_placed", "sweep_placed"]

_NAME_LENGTH = 40
_READ_ONLY = 0o555
_OWN = 0o755


def placed_path(folder: Path, digest: str, name: str) -> Path:
    """Return the path of a placed version."""
    return folder / digest[:_NAME_LENGTH] / (name or "data")


def place(store: LocalStore, version: Version, folder: Path, *, name: str = "") -> Path:
    """Place a version below `folder` and return its path. Blocks; idempotent; reads every byte once.

    Files are hard links into the store if possible, else clones or copies.

    Raises:
        PreconditionError: bytes in the store are missing or changed (`store-damaged`), or there is no space.
    """
    target = placed_path(folder, version.digest, name or version.name)
    if is_whole(target, version):
        with contextlib.suppress(OSError):
            os.utime(_stamps_path(target))  # mark as used
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{os.getpid()}.{os.urandom(6).hex()}"
    try:
        with store.locked(is_alone=False):
            store.touch(version.digest)
            if version.kind == "file":
                store.objects.link(
                    store.verify(version.entries[0]), temporary, is_executable=version.entries[0].mode == "x"
                )
            else:
                _tree(store, version, temporary)
            with lock(_lock_path(target)):  # concurrent repairs must not remove each other's new tree
                _publish(temporary, target, version)
    except OSError as error:
        raise no_space(error, folder) or error from error
    finally:
        _remove(temporary)
    return target


def check_placed(path: Path, version: Version, *, is_thorough: bool = False) -> list[str]:
    """Describe what changed since a version was placed: sizes and times, or every byte if `is_thorough`."""
    stamps = _read_stamps(path)
    problems = []
    for entry in version.entries:
        full = f"{path}/{entry.path}" if entry.path else os.fspath(path)
        label = entry.path or path.name
        try:
            found = os.lstat(full)
        except FileNotFoundError:
            problems.append(f"{label} is missing")
            continue
        if entry.mode == "l":
            if not stat.S_ISLNK(found.st_mode) or os.readlink(full) != entry.link:
                problems.append(f"{label} changed")
        elif [found.st_size, found.st_mtime_ns] != stamps.get(entry.path) or found.st_size != entry.size_bytes:
            problems.append(f"{label} changed")
        elif is_thorough and sha256_of(full) != entry.sha256:
            problems.append(f"{label} has different bytes")
    return problems


def remove_placed(path: Path) -> None:
    """Remove a placed tree, but keep its content in the store. Idempotent."""
    _stamps_path(path).unlink(missing_ok=True)  # first, so that a partial tree never looks complete
    _remove(path)


def sweep_placed(folder: Path, needed: Callable[[], set[str]]) -> None:
    """Remove placed versions below `folder` that are not needed, since their links occupy space. Idempotent.

    Args:
        needed: returns digests to keep; called after listing the folder, so that new versions are kept.
    """
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    kept = {digest[:_NAME_LENGTH] for digest in needed()}
    for path in found:
        if path.name not in kept and len(path.name) == _NAME_LENGTH:
            for stamps in path.glob(".*.placed.json"):
                stamps.unlink(missing_ok=True)  # first, so that a partial tree never looks complete
            _remove(path)


def is_whole(path: Path, version: Version) -> bool:
    """Return whether a version is placed at a path and unchanged."""
    return os.path.lexists(path) and _stamps_path(path).exists() and not check_placed(path, version)


def _tree(store: LocalStore, version: Version, root: Path) -> None:
    folders = {os.path.dirname(entry.path) for entry in version.entries}
    for folder in sorted(folders | {""}):
        (root / folder).mkdir(parents=True, exist_ok=True)

    def make(entry: VersionEntry) -> None:
        if entry.mode == "l":
            os.symlink(entry.link, f"{root}/{entry.path}")
        else:
            store.objects.link(store.verify(entry), f"{root}/{entry.path}", is_executable=entry.mode == "x")

    in_batches(version.entries, lambda entry: entry.size_bytes, make)
    for folder, _, _ in os.walk(root, topdown=False):
        os.chmod(folder, _READ_ONLY)
    os.chmod(root, _OWN)  # a read-only folder cannot be renamed


def _publish(temporary: Path, target: Path, version: Version) -> None:
    """Rename a tree to its target; an existing tree is kept if it is complete, and otherwise replaced."""
    stamps = {
        entry.path: [found.st_size, found.st_mtime_ns]
        for entry in version.entries
        if entry.mode != "l" and (found := os.lstat(f"{temporary}/{entry.path}" if entry.path else temporary))
    }
    try:
        os.link(temporary, target) if version.kind == "file" else os.rename(temporary, target)
    except OSError as error:
        if not os.path.lexists(target):
            raise
        if is_whole(target, version):
            return  # another launch has placed it
        if not _stamps_path(target).exists() and not _differs(target, version, stamps):
            _write_stamps(target, stamps)  # interrupted between rename and stamps
            return
        remove_placed(target)
        _again(temporary, target, version, error)
    _write_stamps(target, stamps)
    fsync_directory(target.parent)


def _again(temporary: Path, target: Path, version: Version, error: OSError) -> None:
    try:
        os.link(temporary, target) if version.kind == "file" else os.rename(temporary, target)
    except OSError as second:
        if not os.path.lexists(target):
            raise PreconditionError(
                f"cannot place data at {target}: {second.strerror}", code="store-damaged"
            ) from error


def _differs(target: Path, version: Version, stamps: dict[str, list[int]]) -> bool:
    for entry in version.entries:
        full = target / entry.path if entry.path else target
        if not os.path.lexists(full):
            return True
        found = os.lstat(full)
        if entry.mode != "l" and [found.st_size, found.st_mtime_ns] != stamps[entry.path]:
            return True
    return False


def _stamps_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.placed.json")


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _read_stamps(path: Path) -> dict[str, object]:
    try:
        found = read_json(_stamps_path(path))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_stamps(path: Path, stamps: dict[str, list[int]]) -> None:
    write_atomic(_stamps_path(path), json.dumps(stamps, separators=(",", ":")).encode() + b"\n")


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    for folder, _, _ in os.walk(path):
        os.chmod(folder, _OWN)
    shutil.rmtree(path, ignore_errors=True)
