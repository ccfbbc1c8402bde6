"""Store at a URL: objects, versions and names in a bucket, a folder or another fsspec target.

A manifest is written last, so a listed version is complete. In a bucket, files appear atomically; elsewhere they are
written under another name and then moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError
from windlass.core.files import write_atomic
from windlass.core.json_text import decode_json
from windlass.store.data_version import Version, VersionEntry, is_digest
from windlass.store.faults import remote_error
from windlass.store.fetching import Fetch, Progress, retry
from windlass.store.local import Alias, LocalStore, check_alias
from windlass.store.objects import Inbox, Objects, no_space
from windlass.store.reading import in_batches
from windlass.store.remote_files import BucketBlob, file_system, full_url

__all__ = ["RemoteStore"]

_WHOLE_AT_ONCE = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
_NUM_WORKERS = 16
_RESUMED_BYTES = 1 << 30  # an interrupted transfer of a larger file is resumed


class RemoteStore:
    """Store for versions of data at a URL such as `s3://bucket/store`. Every method blocks and can be repeated.

    Every method raises AccessError, NotFoundError or UnreachableError (`remote_error`).

    Args:
        pause: sleeps between attempts.
    """

    def __init__(self, url: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = full_url(url).rstrip("/")
        self._system, self._root = file_system(self.url)
        self._pause = pause
        names = self._system.protocol
        self._is_here = "file" in ((names,) if isinstance(names, str) else names)
        self._is_bucket = self.url.partition(":")[0] in _WHOLE_AT_ONCE

    def __str__(self) -> str:
        return self.url

    def versions(self) -> list[str]:
        """Return the digests of all versions, sorted."""
        return [name for name in self._list("versions") if is_digest(name)]

    def aliases(self) -> list[Alias]:
        """Return all aliases, sorted by name."""
        return [alias for name in self._list("aliases") if (alias := self.alias(name)) is not None]

    def alias(self, name: str) -> Alias | None:
        """Return the alias with this name, or None."""
        try:
            found = decode_json(self._cat(f"aliases/{name}.json"))
            return Alias(name=name, digest=str(found["digest"]), at=float(found["at"]))
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(f"the name `{name}` at {self.url} is damaged", code="store-damaged") from error

    def resolve(self, text: str) -> str:
        """Return the digest for a name or a digest.

        Raises:
            NotFoundError: there is no match (`data-not-found`).
        """
        wanted = text.removeprefix("sha256:")
        if is_digest(wanted):
            return wanted
        check_alias(text)
        alias = self.alias(text)
        if alias is None:
            raise NotFoundError(
                f"no data `{text}` at {self.url}",
                hint=f"list its data: windlass data ls --store {self.url}",
                code="data-not-found",
            )
        return alias.digest

    def read(self, digest: str) -> Version:
        """Return the version with this full digest, which its manifest must match."""
        try:
            return Version.from_bytes(self._cat(f"versions/{digest}.json"), digest)
        except NotFoundError as error:
            raise NotFoundError(
                f"no data {digest[:12]} at {self.url}",
                hint=f"list its data: windlass data ls --store {self.url}",
                code="data-not-found",
            ) from error
        except ValueError as error:
            raise PreconditionError(
                f"the manifest of {digest[:12]} at {self.url} is damaged: {error}",
                hint="push it again from a store that has it",
                code="store-damaged",
            ) from error

    # --- transfer -------------------------------------------------------------------------------------------------

    def push(self, store: LocalStore, digest: str, *, name: str = "", progress: Progress = lambda n: None) -> Version:
        """Send a version, except for objects that exist in this store; the manifest is sent last.

        Args:
            name: alias for the version in that store.

        Raises:
            PreconditionError: bytes in the local store are missing or changed; nothing visible changed at the URL.
        """
        if name:
            check_alias(name)
        version = store.read(digest)
        entries = {entry.sha256: entry for entry in version.entries if entry.mode != "l"}
        with store.locked(is_alone=False):
            for _ in range(2):  # a collection there may have removed objects since
                present = self._present(entries.values())
                missing = [entry for sha, entry in entries.items() if sha not in present]
                if self._is_here:
                    self._send_here(store, missing, progress)
                else:
                    self._all(missing, lambda entry: self._send(store, entry, progress))
                if self._is_readable(digest):
                    break
                self._put(f"versions/{digest}.json", version.to_bytes())
        if name:
            self.set_alias(name, digest)
        return version

    def pull(self, store: LocalStore, digest: str, *, name: str = "", progress: Progress = lambda n: None) -> Version:
        """Fetch a version to `store`, except for objects that exist there; partial transfers are resumed.

        Args:
            name: alias for the version in the local store.

        Raises:
            PreconditionError: a digest is wrong (`digest-mismatch`), or the disk or quota is full.
        """
        if name:
            check_alias(name)
        version = store.read(digest) if store.has(digest) else self.read(digest)
        entries = {(entry.sha256, entry.mode): entry for entry in version.entries if entry.mode != "l"}
        missing = [
            entry
            for entry in entries.values()
            if not store.has_object(entry.sha256, entry.size_bytes, is_executable=entry.mode == "x")
        ]
        with store.writing() as inbox:
            fetch = Fetch(store=store, inbox=inbox, progress=progress, pause=self._pause)
            if self._is_here:
                in_batches(missing, lambda entry: entry.size_bytes, lambda entry: self._get(fetch, entry))
            else:
                self._all(missing, lambda entry: self._get(fetch, entry))
            inbox.flush()
            store.publish(version)
            if name:
                store.set_alias(name, digest)
        return version

    def _is_readable(self, digest: str) -> bool:
        try:
            self.read(digest)
        except (NotFoundError, PreconditionError):
            return False
        return True

    def _get(self, fetch: Fetch, entry: VersionEntry) -> None:
        path = self._path(_object(entry.sha256))
        if self._is_here and not os.path.exists(path) and os.path.exists(f"{path}.x"):
            path = f"{path}.x"  # name of executable files in a local store
        if self._is_here and entry.size_bytes < _RESUMED_BYTES and self._copy(fetch, path, entry):
            return
        blob = BucketBlob(
            url=f"{self.url}/{_object(entry.sha256)}",
            size_bytes=entry.size_bytes,
            tag=entry.sha256,
            system=self._system,
            path=path,
        )
        fetch.get(blob, sha256=entry.sha256, is_executable=entry.mode == "x")

    def _copy(self, fetch: Fetch, path: str, entry: VersionEntry) -> bool:
        """Copy a file from a mounted file system in one pass; return False if that failed."""
        try:
            found = fetch.inbox.copy(path, 0o555 if entry.mode == "x" else 0o444, expected=entry.sha256)
        except OSError as error:
            if no_space(error, "") is not None:
                raise
            return False
        if found != entry.sha256:
            return False
        fetch.progress(entry.size_bytes)
        return True

    def _send(self, store: LocalStore, entry: VersionEntry, progress: Progress) -> None:
        path = store.verify(entry)
        key = _object(entry.sha256)
        self._write(key, lambda target: self._system.put_file(os.fspath(path), target))
        progress(entry.size_bytes)

    def _send_here(self, store: LocalStore, entries: list[VersionEntry], progress: Progress) -> None:
        """Copy objects durably to a folder, reading each only once."""

        def send(entry: VersionEntry) -> None:
            path = store.open_object(entry)
            if inbox.copy(path, 0o444, expected=entry.sha256) != entry.sha256:
                store.verify(entry)  # raises the reason and moves it aside
                raise UnreachableError(
                    f"{path} returns different bytes at each read", hint="check the disk", code="remote-unreachable"
                )
            progress(entry.size_bytes)

        try:
            with Inbox(Objects(Path(self._path("objects"))), Path(self._path("incoming"))) as inbox:
                in_batches(entries, lambda entry: entry.size_bytes, send)
        except OSError as error:
            raise no_space(error, self.url) or remote_error(self.url, error) from error

    def _present(self, entries: Iterable[VersionEntry]) -> set[str]:
        """Return the digests of the objects that exist with the right size."""
        wanted = {entry.sha256: entry.size_bytes for entry in entries}
        sizes: dict[str, int] = {}

        def look() -> None:
            if len(wanted) > 64:
                found = self._system.find(self._path("objects"), detail=True)
                sizes.update({path.rpartition("/")[2]: int(info["size"]) for path, info in found.items()})
                return
            for sha in wanted:
                with contextlib.suppress(FileNotFoundError):
                    sizes[sha] = int(self._system.info(self._path(_object(sha)))["size"])

        retry(self.url, look, pause=self._pause)
        return {sha for sha, size in wanted.items() if sizes.get(sha) == size}

    def _all(self, entries: list[VersionEntry], do: Callable[[VersionEntry], None]) -> None:
        """Call `do` for all entries concurrently; stop after the first error."""
        with ThreadPoolExecutor(_NUM_WORKERS) as pool:
            futures = [pool.submit(do, entry) for entry in entries]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    # --- names ----------------------------------------------------------------------------------------------------

    def has(self, digest: str) -> bool:
        """Return whether a version exists."""
        answers: list[bool] = []
        path = self._path(f"versions/{digest}.json")

        def ask() -> None:
            try:
                self._system.info(path)
                answers.append(True)
            except FileNotFoundError:
                answers.append(False)

        retry(self.url, ask, pause=self._pause)
        return answers[-1]

    def set_alias(self, name: str, digest: str) -> None:
        """Let a name point to a version."""
        check_alias(name)
        self._put(f"aliases/{name}.json", json.dumps({"digest": digest, "at": time.time()}).encode())

    def remove_alias(self, name: str) -> None:
        """Remove a name but keep the version. Idempotent."""
        self.delete([f"aliases/{name}.json"])

    def forget(self, digest: str) -> None:
        """Remove a version's manifest and names; the next garbage collection frees the space. Idempotent."""
        for alias in self.aliases():
            if alias.digest == digest:
                self.remove_alias(alias.name)
        self.delete([f"versions/{digest}.json"])

    def delete(self, keys: Iterable[str]) -> None:
        """Remove files, ignoring missing ones."""
        for key in keys:

            def remove(path: str = self._path(key)) -> None:
                with contextlib.suppress(FileNotFoundError):
                    self._system.rm_file(path)

            retry(self.url, remove, pause=self._pause)

    def files(self, part: str) -> dict[str, tuple[int, float]]:
        """Return the size and modification time (0 if unknown) of the files below a part of the store, by key."""
        found: dict[str, Any] = {}

        def look() -> None:
            with contextlib.suppress(FileNotFoundError):
                found.update(self._system.find(self._path(part), detail=True))

        retry(self.url, look, pause=self._pause)
        prefix = f"{self._root}/"
        return {path.removeprefix(prefix): (int(info["size"]), _changed_at(info)) for path, info in found.items()}

    def unfinished(self) -> dict[str, tuple[int, float]]:
        """Return what interrupted pushes left behind, like `files`; a bucket has nothing of that kind."""
        found = {} if self._is_bucket else self.files("")
        return {key: value for key, value in found.items() if key.startswith("incoming") or key.endswith(".tmp")}

    def _list(self, part: str) -> list[str]:
        names = [key.rpartition("/")[2] for key in self.files(part)]
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def _cat(self, key: str) -> bytes:
        content: list[bytes] = []
        retry(f"{self.url}/{key}", lambda: content.append(self._system.cat_file(self._path(key))), pause=self._pause)
        return bytes(content[-1])

    def _put(self, key: str, content: bytes) -> None:
        if self._is_here:
            self._try(key, lambda: _write_here(Path(self._path(key)), content))
        else:
            self._write(key, lambda target: self._system.pipe_file(target, content))

    def _write(self, key: str, write: Callable[[str], object]) -> None:
        path = self._path(key)

        def do() -> None:
            if self._is_bucket:
                write(path)
                return
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            temporary = f"{self._root}/incoming-{os.getpid()}-{os.urandom(6).hex()}"
            try:
                write(temporary)
                self._system.mv(temporary, path)
            except BaseException:
                with contextlib.suppress(Exception):  # raise the original error
                    self._system.rm_file(temporary)
                raise

        self._try(key, do)

    def _try(self, key: str, do: Callable[[], None]) -> None:
        try:
            retry(f"{self.url}/{key}", do, pause=self._pause)
        except OSError as error:
            raise no_space(error, self.url) or error from error

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"


def _write_here(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content)


def _object(sha256: str) -> str:
    return f"objects/{sha256[:2]}/{sha256}"


def _changed_at(info: dict[str, Any]) -> float:
    found = info.get("LastModified") or info.get("mtime") or info.get("updated") or info.get("created")
    if isinstance(found, (int, float)):
        return float(found)
    if isinstance(found, str):
        import datetime as dt  # lazy: only gcsfs returns text

        with contextlib.suppress(ValueError):
            return dt.datetime.fromisoformat(found).timestamp()
        return 0.0
    return float(found.timestamp()) if found is not None else 0.0
