"""Garbage collection of versions that have no name, are not needed and were not used, and of orphaned objects.

A local store is locked during a collection (`store.lock`). A store at a URL has no locks: only files older than any
transfer are removed, and manifests are read again before objects are removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.store.data_version import is_digest
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore

__all__ = ["Collected", "collect", "collect_remote"]

_DAY_S = 86400.0
_REMOTE_GRACE_S = 2 * _DAY_S
_LOCK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Result of a collection, or of a dry run.

    Attributes:
        versions: digests of removed versions.
        kept: by digest, the reason why an unnamed version is kept.
        num_objects, num_bytes: number and size of removed objects and partial files.
    """

    versions: tuple[str, ...]
    kept: Mapping[str, str]
    num_objects: int
    num_bytes: int


def collect(
    store: LocalStore, *, pinned: Mapping[str, str], older_than_s: float = 7 * _DAY_S, is_dry: bool = False
) -> Collected:
    """Remove versions that have no name, are not pinned and were not used, and objects that belong to no version.

    Blocks until writers have finished. Idempotent; the next collection completes an interrupted one.

    Args:
        pinned: digests to keep, with their user, such as a run's id.
        older_than_s: versions added or used more recently are kept.

    Raises:
        WaitTimeoutError: the store remains in use (`in-use`).
        PreconditionError: a manifest is damaged, so the objects it needs are unknown (`store-damaged`).
    """
    if not store.root.is_dir():
        return Collected(versions=(), kept={}, num_objects=0, num_bytes=0)
    with store.locked(is_alone=True, timeout_s=_LOCK_S):
        named = {alias.digest for alias in store.aliases()}
        before = store.clock() - older_than_s
        going: list[str] = []
        kept: dict[str, str] = {}
        needed: set[str] = set()
        for digest in store.versions():
            if digest in pinned:
                kept[digest] = pinned[digest]
            elif digest not in named and store.used_at(digest) > before:
                kept[digest] = "used recently"
            elif digest not in named:
                going.append(digest)
                continue
            needed |= store.read(digest).objects.keys()
        num_objects, num_bytes = _sweep(store, needed, before, going, is_dry=is_dry)
    unnamed = {digest: why for digest, why in kept.items() if digest not in named}
    return Collected(versions=tuple(going), kept=unnamed, num_objects=num_objects, num_bytes=num_bytes)


def _sweep(store: LocalStore, needed: set[str], before: float, going: list[str], *, is_dry: bool) -> tuple[int, int]:
    loose = [entry for entry in store.objects.walk() if entry.name.removesuffix(".x") not in needed]
    for part in ("partial", "damaged", "versions", "aliases"):
        with contextlib.suppress(FileNotFoundError):
            found = [entry for entry in os.scandir(store.root / part) if entry.stat().st_mtime < before]
            loose += [entry for entry in found if part in ("partial", "damaged") or entry.name.endswith(".tmp")]
    num_bytes = sum(entry.stat().st_size for entry in loose)
    if not is_dry:
        for digest in going:
            store.forget(digest)  # before its objects, so that no version is ever incomplete
        for entry in loose:
            os.unlink(entry.path)
        shutil.rmtree(store.root / "incoming", ignore_errors=True)  # there are no writers, since the store is locked
    return sum(not entry.name.endswith(".lock") for entry in loose), num_bytes


def collect_remote(
    store: RemoteStore,
    *,
    pinned: Mapping[str, str],
    now: float,
    older_than_s: float = 7 * _DAY_S,
    is_dry: bool = False,
) -> Collected:
    """Like `collect`, but for a store at a URL. Versions that runs on other machines need must have a name.

    Raises:
        PreconditionError: a manifest is damaged; nothing was removed.
    """
    before = now - max(older_than_s, _REMOTE_GRACE_S)
    named = {alias.digest for alias in store.aliases()}
    manifests = store.files("versions")
    going, kept = [], {}
    for key, (_, changed_at) in manifests.items():
        digest = key.rpartition("/")[2].removesuffix(".json")
        if not is_digest(digest):
            continue
        if digest in pinned:
            kept[digest] = pinned[digest]
        elif digest not in named and (changed_at > before or not changed_at):
            kept[digest] = "added recently"
        elif digest not in named:
            going.append(digest)
    if not is_dry:
        for digest in going:
            store.delete([f"versions/{digest}.json"])
    needed = _needed(store, set(going) if is_dry else set())
    loose = {
        key: size
        for key, (size, changed_at) in store.files("objects").items()
        if key.rpartition("/")[2] not in needed and 0 < changed_at < before
    }
    if not is_dry and loose:
        again = _needed(store, set())
        store.delete(key for key in loose if key.rpartition("/")[2] not in again)
    half = {key: size for key, (size, changed_at) in store.unfinished().items() if 0 < changed_at < before}
    if not is_dry:
        store.delete(half)
    loose |= half
    return Collected(versions=tuple(going), kept=kept, num_objects=len(loose), num_bytes=sum(loose.values()))


def _needed(store: RemoteStore, without: set[str]) -> set[str]:
    needed: set[str] = set()
    for digest in store.versions():
        if digest in without:
            continue
        try:
            needed |= store.read(digest).objects.keys()
        except PreconditionError as error:
            raise PreconditionError(
                f"{error.message}; nothing was removed, since the objects it needs are unknown",
                hint=error.hint,
                code=error.code,
            ) from error
    return needed
