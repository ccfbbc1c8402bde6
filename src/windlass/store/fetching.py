"""Fetching of a remote file into the store, which can be resumed and is checked before use."""

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
"""Callback with the number of received bytes; called from several threads."""


class Blob(Protocol):
    """Remote file that can be read from any offset.

    Attributes:
        url: name of the file in messages.
        size_bytes: size of the file; -1 if unknown.
        tag: value that changes with the content (etag, commit, digest), used to name the partial file.
    """

    @property
    def url(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def tag(self) -> str: ...

    def read(self, offset: int) -> Iterator[bytes]:
        """Yield the file's bytes from an offset. May raise any error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Fetcher that downloads blobs to a store.

    Attributes:
        progress: called with the size of each received piece.
        pause: sleeps between attempts.
    """

    store: LocalStore
    inbox: Inbox
    progress: Progress = field(default=lambda num_bytes: None)
    pause: Callable[[float], None] = time.sleep

    def get(self, blob: Blob, *, sha256: str = "", is_executable: bool = False) -> tuple[str, int]:
        """Fetch a blob, only once for concurrent callers; return its digest and size. Blocks; idempotent.

        Args:
            sha256: expected digest; empty if unknown.

        Raises:
            PreconditionError: the digest was wrong twice (`digest-mismatch`).
            AccessError, NotFoundError, UnreachableError: the server refuses, or fails repeatedly.
        """
        if sha256 and self.store.has_object(sha256, blob.size_bytes, is_executable=is_executable):
            return sha256, blob.size_bytes
        if 0 <= blob.size_bytes <= _SMALL_BYTES:
            return self._get_small(blob, sha256, is_executable=is_executable)
        with self._partial(blob, sha256) as partial:
            if sha256 and self.store.has_object(sha256, blob.size_bytes, is_executable=is_executable):
                return sha256, blob.size_bytes  # another caller has fetched it
            found, size = self._fill(partial, blob)
            if sha256 and found != sha256:
                os.truncate(partial, 0)  # an old partial file, or the transfer, may be damaged
                found, size = self._fill(partial, blob)
            if sha256 and found != sha256:
                partial.unlink()
                raise _mismatch(blob, found, sha256)
            temporary = self.inbox.temporary()
            os.rename(partial, temporary)
            self.inbox.take(temporary, found, size, is_executable=is_executable)
            if sha256:
                self.inbox.flush()  # before the lock is released, so that waiting callers find the object
            return found, size

    def _get_small(self, blob: Blob, sha256: str, *, is_executable: bool) -> tuple[str, int]:
        """Fetch a small file in one piece; after an interruption, start from the beginning."""
        content = bytearray()

        def read() -> None:
            content.clear()
            for piece in blob.read(0):
                content.extend(piece)
            if len(content) != blob.size_bytes:
                raise EOFError(f"received {len(content)} of {blob.size_bytes} bytes")

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
        """Yield the path of a blob's partial file, which is locked meanwhile."""
        # After a power loss a partial file may contain garbage; without a digest it is not reused after a reboot.
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
        """Read until the partial file is complete; return its digest and size."""
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
                    code="remote-unreachable",
                )
            return digest.hexdigest(), file.tell()


def _mismatch(blob: Blob, found: str, wanted: str) -> PreconditionError:
    return PreconditionError(
        f"{blob.url} does not have the expected content: its sha256 is {found}, not {wanted}",
        hint="the file was changed or damaged at its source; it is not used",
        code="digest-mismatch",
    )


def retry(
    url: str,
    call: Callable[[], None],
    *,
    pause: Callable[[float], None] = time.sleep,
    advanced: Callable[[], int] = lambda: 0,
) -> None:
    """Call `call`, and retry it after transient errors with growing pauses; progress resets the count.

    Args:
        advanced: returns the progress.

    Raises:
        WindlassError: the last error (`remote_error`).
    """
    tries, reached = 0, advanced()
    while True:
        try:
            call()
            return
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the local disk is full
            tries = 1 if advanced() > reached else tries + 1
            reached = advanced()
            if tries >= _TRIES or not is_passing(error):
                raise remote_error(url, error) from error
            pause(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (tries - 1)) * random.uniform(0.5, 1.0))
