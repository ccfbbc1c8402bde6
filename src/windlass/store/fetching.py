"""Bring one remote file into the store: in pieces, from where an earlier try stopped, checked before it counts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Protocol

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.process import boot_id
from windlass.store.faults import is_passing, remote_error
from windlass.store.local import LocalStore
from windlass.store.objects import Inbox

__all__ = ["Blob", "Fetch", "Progress", "retry"]

_TRIES = 6
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
_PIECE_BYTES = 1 << 20
_SMALL_BYTES = 4 << 20

Progress = Callable[[int], None]
"""Gets bytes as they arrive; called from several threads."""


class Blob(Protocol):
    """One remote file that can be read from any offset.

    Attributes:
        url: names it in messages.
        size_bytes: -1: unknown.
        tag: changes when its content does (an etag, a commit, a digest); names its half-fetched file.
    """

    @property
    def url(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def tag(self) -> str: ...

    def read(self, offset: int) -> Iterator[bytes]:
        """Its bytes from an offset on; raises anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetches blobs into a store.

    Attributes:
        progress: told of every piece that arrives.
        pause: sleeps between tries.
    """

    store: LocalStore
    inbox: Inbox
    progress: Progress = field(default=lambda num_bytes: None)
    pause: Callable[[float], None] = time.sleep

    def get(self, blob: Blob, *, sha256: str = "", is_executable: bool = False) -> tuple[str, int]:
        """Bring a blob in and return its digest and size. Blocks; idempotent; two callers fetch it once.

        Args:
            sha256: what its bytes must be; empty: not known.

        Raises:
            PreconditionError: other bytes came twice (`digest-mismatch`).
            AccessError, NotFoundError, UnreachableError: the place refuses, or fails again and again.
        """
        if sha256 and self.store.has_object(sha256, blob.size_bytes, is_executable=is_executable):
            return sha256, blob.size_bytes
        if 0 <= blob.size_bytes <= _SMALL_BYTES:
            return self._get_small(blob, sha256, is_executable=is_executable)
        with self._partial(blob, sha256) as partial:
            if sha256 and self.store.has_object(sha256, blob.size_bytes, is_executable=is_executable):
                return sha256, blob.size_bytes  # somebody else fetched it while we waited
            found, size = self._fill(partial, blob)
            if sha256 and found != sha256:
                os.truncate(partial, 0)  # what was left from before may be at fault, or the way here
                found, size = self._fill(partial, blob)
            if sha256 and found != sha256:
                partial.unlink()
                raise _mismatch(blob, found, sha256)
            temporary = self.inbox.temporary()
            os.rename(partial, temporary)
            self.inbox.take(temporary, found, size, is_executable=is_executable)
            if sha256:
                self.inbox.flush()  # before the lock goes, so that who waits for it finds the object
            return found, size

    def _get_small(self, blob: Blob, sha256: str, *, is_executable: bool) -> tuple[str, int]:
        """A small file is read whole; a killed fetch begins it again."""
        content = bytearray()

        def read() -> None:
            content.clear()
            for piece in blob.read(0):
                content.extend(piece)
            if len(content) != blob.size_bytes:
                raise EOFError(f"{len(content)} of {blob.size_bytes} bytes came")

        found = ""
        for _ in range(2):
            retry(blob.url, read, pause=self.pause)
            found = hashlib.sha256(content).hexdigest()
            if found == (sha256 or found):
                break
        else:
            raise _mismatch(blob, found, sha256)
        self.progress(len(content))
        temporary = self.inbox.temporary()
        with open(temporary, "xb") as file:
            file.write(content)
        self.inbox.take(temporary, found, len(content), is_executable=is_executable)
        return found, len(content)

    @contextlib.contextmanager
    def _partial(self, blob: Blob, sha256: str) -> Iterator[Path]:
        """The half-fetched file of a blob, for this caller alone."""
        # Bytes that a dead machine never wrote can hide in a file that nothing can be compared with.
        key = sha256 or hashlib.sha256(f"{blob.url}\0{blob.tag}\0{boot_id()}".encode()).hexdigest()
        folder = self.store.root / "partial"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / key
        descriptor = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            path.touch()
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size == 0:
                    path.unlink()
            os.close(descriptor)

    def _fill(self, partial: Path, blob: Blob) -> tuple[str, int]:
        """Read until the file is whole; returns its digest and size."""
        with open(partial, "r+b") as file:
            digest = hashlib.sha256()
            if file.seek(0, os.SEEK_END) > blob.size_bytes >= 0:
                file.truncate(0)
            file.seek(0)
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)

            def go_on() -> None:
                for piece in blob.read(file.tell()):
                    file.write(piece)
                    digest.update(piece)
                    self.progress(len(piece))
                if blob.size_bytes >= 0 and file.tell() < blob.size_bytes:
                    raise EOFError(f"the connection was cut at byte {file.tell()} of {blob.size_bytes}")

            try:
                if file.tell() != blob.size_bytes:
                    retry(blob.url, go_on, pause=self.pause, advanced=file.tell)
            finally:
                file.flush()
            if file.tell() > blob.size_bytes >= 0:
                raise UnreachableError(
                    f"{blob.url} sent {file.tell()} bytes instead of {blob.size_bytes}",
                    hint="try again",
                    code="remote-failed",
                )
            return digest.hexdigest(), file.tell()


def _mismatch(blob: Blob, found: str, wanted: str) -> PreconditionError:
    return PreconditionError(
        f"{blob.url} has other bytes than expected: sha256 {found}, not {wanted}",
        hint="it was changed or damaged there; nothing of it is used",
        code="digest-mismatch",
    )


def retry(
    url: str,
    call: Callable[[], None],
    *,
    pause: Callable[[float], None] = time.sleep,
    advanced: Callable[[], int] = lambda: 0,
) -> None:
    """Call again after faults that pass, with growing pauses; whoever gets further gets all its tries back.

    Args:
        advanced: how far it came.

    Raises:
        WindlassError: the last fault (`remote_error`).
    """
    tries, reached = 0, advanced()
    while True:
        try:
            call()
            return
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # a full disk here
            tries = 1 if advanced() > reached else tries + 1
            reached = advanced()
            if tries >= _TRIES or not is_passing(error):
                raise remote_error(url, error) from error
            pause(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tries - 1)) * random.uniform(0.5, 1.0))
