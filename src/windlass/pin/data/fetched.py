"""Fetching of a source into the store; content with a known etag, commit or digest is not fetched again."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.pin.data.listing import Listing, RemoteFile
from windlass.pin.data.pinned import no_secret
from windlass.store.data_version import Version, VersionEntry, is_digest
from windlass.store.fetching import Fetch, Progress
from windlass.store.local import LocalStore
from windlass.store.remote_files import BucketBlob, HttpBlob

__all__ = ["fetch_source"]

_NUM_WORKERS = 16
_SAVE_EVERY = 200


def fetch_source(
    name: str,
    source: str,
    store: LocalStore,
    *,
    needs_digest: bool = True,
    find_secret: Callable[[str], str] = no_secret,
    progress: Progress = lambda num_bytes: None,
) -> tuple[Version, str]:
    """Ensure that a source's content is in the store; return its version and revision. Blocks; idempotent.

    Args:
        needs_digest: reject `http(s):` without a stated digest, because its content may change unnoticed.
        find_secret: see `DataPlaces`.
        progress: called for every chunk that arrives.

    Raises:
        PreconditionError: the bytes differ from the stated digest (`digest-mismatch`), no space, no digest stated.
        NotFoundError, AccessError, UnreachableError: as the source reports.
    """
    address, _, fragment = source.partition("#")
    stated = _stated(name, source, fragment)
    scheme = address.partition(":")[0]
    if scheme == "store":
        version = store.read(store.resolve(address.removeprefix("store:")))
        store.touch(version.digest)
        return version, ""
    if scheme in ("http", "https") and needs_digest and not stated:
        raise PreconditionError(
            f"data `{name}`: `{source}` has no digest, so its content may change unnoticed",
            hint=f"write `{address}#sha256=...`; `windlass data add {address}` fetches it and prints the digest",
            code="data-digest-missing",
        )
    if stated and store.has(stated):
        store.touch(stated)
        return store.read(stated), ""
    listing = _list(name, address, scheme, stated, find_secret)
    version = _fetch(name, address, listing, store, stated, progress)
    if stated and version.digest != stated:
        raise PreconditionError(
            f"data `{name}`: {address} has the digest {version.digest}, not {stated}",
            hint="the source has changed; write the digest of the version to use",
            code="digest-mismatch",
        )
    return version, listing.revision


def _stated(name: str, source: str, fragment: str) -> str:
    if not fragment:
        return ""
    digest = fragment.removeprefix("sha256=").lower()
    if not fragment.startswith("sha256=") or not is_digest(digest):
        raise UsageError(
            f"data `{name}`: `#{fragment}` in `{source}` is not a digest",
            hint="write `#sha256=` and its 64 hex digits",
            code="invalid-value",
        )
    return digest


def _list(name: str, address: str, scheme: str, stated: str, find_secret: Callable[[str], str]) -> Listing:
    if scheme in ("http", "https"):
        blob = HttpBlob(url=address, tag=stated or "unstated")
        return Listing(kind="file", files=(RemoteFile(path="", blob=blob, sha256=stated),))
    if scheme == "hf":
        from windlass.pin.data.hugging_face import list_hub  # lazy: beside its one use

        return list_hub(name, address, find_secret=find_secret)
    from windlass.pin.data.buckets import list_bucket  # lazy: as above

    return list_bucket(name, address)


def _fetch(name: str, address: str, listing: Listing, store: LocalStore, stated: str, progress: Progress) -> Version:
    known = _Known(store.root / "fetched" / f"{hashlib.sha256(address.encode()).hexdigest()[:40]}.json", address)
    with store.writing() as inbox:
        fetch = Fetch(store=store, inbox=inbox, progress=progress)

        def one(file: RemoteFile) -> VersionEntry:
            sha256 = file.sha256 or known.get(file)
            if sha256 and not file.sha256 and not store.has_object(sha256, file.blob.size_bytes):
                sha256 = ""  # only a hint: the object may be gone or changed
            found, size = fetch.get(file.blob, sha256=sha256)
            if not sha256:
                _check_same(name, file)
            known.put(file, found)
            return VersionEntry(
                path=file.path, mode="-", size_bytes=size if size >= 0 else _size(store, found), sha256=found
            )

        entries = []
        with ThreadPoolExecutor(min(_NUM_WORKERS, len(listing.files))) as pool, contextlib.closing(known):
            futures = [pool.submit(one, file) for file in listing.files]
            try:
                entries = [future.result() for future in as_completed(futures)]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        version = Version(
            kind=listing.kind,
            entries=tuple(entries),
            name=address.rstrip("/").rpartition("/")[2],
            source=address + (f" ({listing.revision})" if listing.revision else ""),
            at=store.clock(),
        )
        if not stated or stated == version.digest:
            inbox.flush()
            store.publish(version)
    return version


def _size(store: LocalStore, sha256: str) -> int:
    return store.objects.path(sha256).stat().st_size


def _check_same(name: str, file: RemoteFile) -> None:
    """Raise if an object changed between the requests that read it."""
    if not isinstance(file.blob, BucketBlob):
        return
    from windlass.pin.data.buckets import tag_now  # lazy: beside its one use

    if tag_now(file.blob) != file.blob.tag:
        raise PreconditionError(
            f"data `{name}`: {file.blob.url} changed while it was being read",
            hint="wait until it is completely written",
            code="input-changed",
        )


class _Known:
    """Known digests of a source's files.

    Each is valid for one tag. Saved now and then, so that a killed fetch can resume.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._found: dict[str, list[str]] = {}
        self._before: dict[str, list[str]] = {}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = read_json(path)
            self._before = dict(content["files"]) if isinstance(content, dict) else {}

    def get(self, file: RemoteFile) -> str:
        """Return the known digest of a file, if its tag is unchanged; empty if unknown."""
        before = self._before.get(_key(file), ["", ""])
        return before[1] if before[0] == file.blob.tag and is_digest(before[1]) else ""

    def put(self, file: RemoteFile, sha256: str) -> None:
        if file.blob.tag and file.blob.tag != "unstated":
            self._found[_key(file)] = [file.blob.tag, sha256]
            if len(self._found) % _SAVE_EVERY == 0:
                self.close()

    def close(self) -> None:
        """Save the known digests."""
        found = {**self._before, **dict(self._found)}
        if found != self._before:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._path, {"source": self._address, "files": found}, is_durable=False)


def _key(file: RemoteFile) -> str:
    return os.fsencode(file.path).decode("utf-8", "backslashreplace")
