"""Store on this machine or on a shared file system.

    objects/ab/<sha256>[.x]   bytes, read-only
    versions/<digest>.json    a manifest: written when all its objects are on the disk
    aliases/<name>.json       a name for a version; can be reassigned
    incoming/                 files being written; `collect` removes leftovers of killed processes
    partial/                  partial files, which the next fetch resumes
    fetched/                  digests of remote sources, so that they are not fetched again

Writers hold `store.lock` shared and a collection holds it exclusively, so that it never sees incomplete versions.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import (
    NotFoundError,
    PreconditionError,
    UsageError,
    WaitTimeoutError,
)
from windlass.core.files import write_atomic, write_json
from windlass.core.json_text import read_json
from windlass.core.units import format_size, parse_size
from windlass.store.data_version import Version, VersionEntry, is_digest
from windlass.store.direct_io import digest_stored
from windlass.store.objects import Inbox, Objects, no_space
from windlass.store.scan import scan

__all__ = ["Alias", "LocalStore", "check_alias"]

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_SHORTEST = 6
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Name that points to a version, with the wall time of its last change."""

    name: str
    digest: str
    at: float


class LocalStore:
    """Store for versions of data at a POSIX path. Safe for threads, processes and machines with shared locks.

    Args:
        root: folder of the store, created by the first write.
        quota_bytes: maximum size of all objects; 0 for no limit.
        clock: wall time in seconds.
    """

    def __init__(self, root: Path, *, quota_bytes: int = 0, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.objects = Objects(root / "objects")
        self.quota_bytes = quota_bytes
        self.clock = clock

    def __str__(self) -> str:
        return str(self.root)

    @classmethod
    def of(cls, home: Path, environ: Mapping[str, str] = os.environ) -> LocalStore:
        """Return the store at `$WINDLASS_STORE` or `<home>/store`, limited by `$WINDLASS_STORE_QUOTA`."""
        stated = environ.get("WINDLASS_STORE")
        root = Path(stated).expanduser().absolute() if stated else home / "store"
        quota = environ.get("WINDLASS_STORE_QUOTA", "")
        try:
            return cls(root, quota_bytes=parse_size(quota) if quota else 0)
        except ValueError as error:
            raise UsageError(
                f"invalid size `{quota}` in WINDLASS_STORE_QUOTA", hint="export WINDLASS_STORE_QUOTA=500GB"
            ) from error

    # --- versions -------------------------------------------------------------------------------------------------

    def add(self, path: Path, *, name: str = "", source: str = "", cache: Path | None = None) -> Version:
        """Add a file or folder as a version; equal content gives an equal version. Blocks; idempotent.

        Args:
            name: alias for the version; also used in messages.
            cache: folder of digests by file times; unchanged files in the store are not read again.

        Raises:
            AccessError, NotFoundError, PreconditionError: the path is unreadable, or the disk or quota is full.
        """
        if name:
            check_alias(name)
        what = f"data `{name or path.resolve().name}`"
        with self.writing() as inbox:

            def read(file: str, mode: int, known: str | None) -> str:
                if known and self.has_object(known, os.stat(file).st_size, is_executable=bool(mode & 0o100)):
                    return known
                return inbox.copy(file, mode)

            entries, is_folder = scan(what, path.resolve(), cache=cache, read=read)
            _refuse_absolute(what, entries)
            version = self._version(entries, is_folder, path, source)
            inbox.flush()
            self.publish(version)
            if name:  # with the lock held, so that a collection never sees the version without its name
                self.set_alias(name, version.digest)
        return version

    def _version(self, entries: list[VersionEntry], is_folder: bool, path: Path, source: str) -> Version:
        return Version(
            kind="folder" if is_folder else "file",
            entries=tuple(entries),
            name=path.resolve().name,
            source=source or str(path.absolute()),
            at=self.clock(),
        )

    def publish(self, version: Version) -> None:
        """Publish a version. The caller is inside `writing`, and all objects exist."""
        path = self._version_path(version.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.has(version.digest):
            self.touch(version.digest)
            return
        write_atomic(path, version.to_bytes(), mode=0o444)

    def has(self, digest: str) -> bool:
        """Return whether a version exists."""
        return self._version_path(digest).exists()

    def has_object(self, sha256: str, size_bytes: int, *, is_executable: bool = False) -> bool:
        """Return whether an object exists with this mode and size (-1 for any), without reading it."""
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.objects.name(sha256, is_executable=is_executable)).st_size
            return size_bytes in (-1, found)
        return False

    def touch(self, digest: str) -> None:
        """Mark a version as used, which protects it from garbage collection for a while."""
        with contextlib.suppress(FileNotFoundError, PermissionError):
            os.utime(self._version_path(digest))

    def read(self, digest: str) -> Version:
        """Return the version with this full digest.

        Raises:
            NotFoundError: there is no such version (`data-not-found`).
            PreconditionError: its manifest is damaged (`store-damaged`).
        """
        path = self._version_path(digest)
        try:
            return Version.from_bytes(path.read_bytes(), digest)
        except FileNotFoundError as error:
            raise _no_version(digest, self) from error
        except ValueError as error:
            raise PreconditionError(
                f"the manifest {path} is damaged: {error}",
                hint=f"rm {path}, then add or pull the data again",
                code="store-damaged",
            ) from error

    def resolve(self, text: str) -> str:
        """Return the digest for a name, a digest or the beginning of a digest; `sha256:` is optional.

        Raises:
            NotFoundError: there is no match (`data-not-found`).
            UsageError: several versions match.
        """
        wanted = text.removeprefix("store:").removeprefix("sha256:")
        if wanted == text.removeprefix("store:") and (alias := self.alias(wanted)) is not None:
            if not self.has(alias.digest):
                raise _points_at_nothing(alias, self)
            return alias.digest
        if is_digest(wanted):
            if self.has(wanted):
                return wanted
            raise _no_version(text, self)
        found = [d for d in self.versions() if d.startswith(wanted)] if len(wanted) >= _SHORTEST else []
        if len(found) > 1:
            raise UsageError(
                f"`{text}` matches {len(found)} versions", hint="type more of the digest", code="ambiguous-name"
            )
        if not found:
            raise _no_version(text, self)
        return found[0]

    def versions(self) -> list[str]:
        """Return the digests of all versions, sorted."""
        return sorted(self._names("versions"))

    def used_at(self, digest: str) -> float:
        """Return the wall time of a version's last use; 0 if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self._version_path(digest).stat().st_mtime
        return 0.0

    def forget(self, digest: str) -> None:
        """Remove a version's manifest and names; the next garbage collection frees the space. Idempotent."""
        for alias in self.aliases():
            if alias.digest == digest:
                self.remove_alias(alias.name)
        self._version_path(digest).unlink(missing_ok=True)

    # --- aliases --------------------------------------------------------------------------------------------------

    def set_alias(self, name: str, digest: str) -> None:
        """Let a name point to a version, replacing its old target."""
        check_alias(name)
        path = self.root / "aliases" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"digest": digest, "at": self.clock()})

    def alias(self, name: str) -> Alias | None:
        """Return the alias with this name, or None."""
        if not _ALIAS.match(name):
            return None
        path = self.root / "aliases" / f"{name}.json"
        try:
            found = read_json(path)
            return Alias(name=name, digest=str(found["digest"]), at=float(found["at"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(
                f"the name `{name}` in the store {self.root} is damaged",
                hint=f"rm {path}, then assign it again: `windlass data add PATH --name {name}`",
                code="store-damaged",
            ) from error

    def aliases(self) -> list[Alias]:
        """Return all aliases, sorted by name."""
        found = [self.alias(name) for name in sorted(self._names("aliases"))]
        return [alias for alias in found if alias is not None]

    def remove_alias(self, name: str) -> None:
        """Remove a name but keep the version. Idempotent."""
        (self.root / "aliases" / f"{name}.json").unlink(missing_ok=True)

    # --- bytes ----------------------------------------------------------------------------------------------------

    def open_object(self, entry: VersionEntry) -> Path:
        """Return the path of an entry's object with the right mode, copied from the other mode if necessary.

        Raises:
            PreconditionError: the object is missing (`store-damaged`).
        """
        is_executable = entry.mode == "x"
        path = self.objects.path(entry.sha256, is_executable=is_executable)
        if self.has_object(entry.sha256, entry.size_bytes, is_executable=is_executable):
            return path
        other = self.objects.find(entry.sha256, entry.size_bytes)
        if other is None:
            raise PreconditionError(
                f"missing bytes of `{entry.path}` (sha256 {entry.sha256[:12]}...) in the store {self.root}",
                hint="add or pull the data again: only missing files are read",
                code="store-damaged",
            )
        with Inbox(self.objects, self.root / "incoming") as inbox:
            inbox.copy(other, 0o555 if is_executable else 0o444)
        return path

    def verify(self, entry: VersionEntry) -> Path:
        """Return the path of an entry's object after checking every byte.

        Raises:
            PreconditionError: the object is damaged (`store-damaged`); it is moved aside, so that adding the data again
                repairs the store.
        """
        name = self.objects.name(entry.sha256, is_executable=entry.mode == "x")
        try:
            sha256, size = digest_stored(name)
        except FileNotFoundError:
            size = -1
        if size != entry.size_bytes:  # missing, of a different size, or only in the other mode
            name = os.fspath(self.open_object(entry))
            sha256, _ = digest_stored(name)
        path = Path(name)
        if sha256 == entry.sha256:
            return path
        aside = self.root / "damaged" / path.name
        aside.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another reader moved it
            os.replace(path, aside)
        raise PreconditionError(
            f"the bytes of `{entry.path or entry.sha256}` in the store {self.root} changed (now in {aside})",
            hint="add or pull the data again: only damaged files are read",
            code="store-damaged",
        )

    def size_bytes(self) -> int:
        """Return the total size of all objects, all of which are listed."""
        return sum(entry.stat().st_size for entry in self.objects.walk())

    def _room(self) -> Callable[[int], None] | None:
        """Return a function that checks the quota, which concurrent writers may exceed together."""
        if not self.quota_bytes:
            return None
        used = self.size_bytes()

        def refuse(new_bytes: int) -> None:
            if used + new_bytes > self.quota_bytes:
                raise PreconditionError(
                    f"the store {self.root} would exceed its quota of {format_size(self.quota_bytes)}",
                    hint="remove unneeded data with `windlass data gc`, or raise WINDLASS_STORE_QUOTA",
                    code="store-full",
                )

        return refuse

    # --- concurrent access ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[Inbox]:
        """Yield an inbox, and exclude garbage collection meanwhile; unfinished files are removed at the end."""
        try:
            with self.locked(is_alone=False), self._inbox() as inbox:
                self.objects.root.mkdir(parents=True, exist_ok=True)
                yield inbox
        except OSError as error:
            raise no_space(error, self.root) or error from error

    def _inbox(self) -> Inbox:
        return Inbox(self.objects, self.root / "incoming", refuse=self._room())

    @contextlib.contextmanager
    def locked(self, *, is_alone: bool, timeout_s: float = 3600.0) -> Iterator[None]:
        """Hold the store's lock, shared or exclusive; it is released if the process dies.

        Raises:
            WaitTimeoutError: other processes kept holding it (`in-use`).
        """
        self._make_root()
        descriptor = os.open(self.root / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH, timeout_s, self.root)
            yield
        finally:
            os.close(descriptor)

    def _make_root(self) -> None:
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise PreconditionError(
                f"cannot create the store {self.root}: {error.strerror or error}",
                hint="set WINDLASS_STORE to a writable folder",
                code="not-writable",
            ) from error

    def _version_path(self, digest: str) -> Path:
        return self.root / "versions" / f"{digest}.json"

    def _names(self, part: str) -> list[str]:
        try:
            found = os.listdir(self.root / part)
        except FileNotFoundError:
            return []
        return [name.removesuffix(".json") for name in found if name.endswith(".json") and not name.startswith(".")]


def check_alias(name: str) -> None:
    """Raise UsageError for an invalid alias."""
    if not _ALIAS.match(name) or is_digest(name):
        raise UsageError(
            f"invalid name for data `{name}`",
            hint="use letters, digits, `.`, `_` and `-`, such as `squad-v2`",
            code="invalid-name",
        )


def _lock(descriptor: int, kind: int, timeout_s: float, root: Path) -> None:
    end = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise WaitTimeoutError(
                    f"the store {root} was in use by other processes for {timeout_s:g} s",
                    hint="try again when they have finished",
                    code="in-use",
                ) from None
            time.sleep(_PAUSE_S)


def _refuse_absolute(what: str, entries: list[VersionEntry]) -> None:
    for entry in entries:
        if entry.link.startswith("/"):
            raise PreconditionError(
                f"{what}: the link {entry.path} has an absolute target ({entry.link})",
                hint=f"make it relative: ln -sfnr {entry.link} {entry.path}",
                code="special-file",
            )


def _points_at_nothing(alias: Alias, store: LocalStore) -> NotFoundError:
    return NotFoundError(
        f"the name `{alias.name}` points at {alias.digest[:12]}, which is not in the store {store.root}",
        hint=f"fetch it from a store that has it with `windlass data pull {alias.digest}`, "
        f"or remove the name with `windlass data rm {alias.name}`",
        code="data-not-found",
    )


def _no_version(text: str, store: LocalStore) -> NotFoundError:
    from windlass.core.names import nearest  # lazy: only for an error

    close = nearest(text.removeprefix("store:"), [alias.name for alias in store.aliases()])
    hint = (
        f"did you mean `{close}`?" if close else "list data with `windlass data ls`, fetch it with `windlass data pull`"
    )
    return NotFoundError(f"no data `{text}` in the store {store.root}", hint=hint, code="data-not-found")
