"""Client of the remote server at a site: sends the zipapp once, then requests and folders."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol, cast

from windlass.backends.site_shell import SiteShell
from windlass.core.errors import (
    AccessError,
    NotFoundError,
    PreconditionError,
    UnreachableError,
    WindlassError,
)
from windlass.core.files import sha256_file
from windlass.supervise.job import JobDocument
from windlass.supervise.remote.framing import FRAME_LINE_BYTES, frame_line, pack, unpack
from windlass.supervise.remote.server import explained

__all__ = ["RemoteClient", "Transport", "write_archive"]

_OLDEST_PYTHON = (3, 9)
_TURN_S = 60.0
_CLEAR_S = 3600.0  # deleting 100 000 files on a shared file system is slow
_SLOWEST_BYTES_S = 100_000
_QUIET_S = 5.0
_ERRORS: dict[int, type[WindlassError]] = {
    kind.exit_code: kind for kind in (NotFoundError, AccessError, UnreachableError, PreconditionError)
}
_ASK_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_THERE = 'for path; do if [ -e "$path" ]; then echo "$path"; fi; done'
# Stores the zipapp at the site; must run on any Python 3.
_STORE = """
import hashlib, os, sys
target, digest = sys.argv[1:]
part = "%s.%d.part" % (target, os.getpid())
os.umask(0o77)
try:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    content = sys.stdin.buffer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        sys.exit("the upload was cut short")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, target)  # never in place of another client's: containers may be mounting it
        except FileExistsError:
            with open(target, "rb") as file:
                is_whole = hashlib.sha256(file.read()).hexdigest() == digest
            if not is_whole:
                os.rename(part, target)
    finally:
        if os.path.exists(part):
            os.unlink(part)
    print("stored")
except OSError as error:
    print("errno", error.errno, error.filename or target)
"""


_broken: dict[str, tuple[float, UnreachableError]] = {}
"""Sites that were just unreachable, so that a command on many runs waits for each only once."""


class Transport(Protocol):
    """Connection from a mirror to its site: `RemoteClient` over ssh, or `BeakerTransport`."""

    name: str
    archive_at_site: PurePosixPath
    has_server: bool
    """True if a server at the site answers, so that requests reach running jobs."""

    def request(
        self, command: str, header: Mapping[str, Any], pieces: Iterable[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and return the reply."""

    def send_folders(
        self,
        folders: Mapping[PurePosixPath, Sequence[tuple[str, Path]]],
        *,
        empty: Mapping[PurePosixPath, Sequence[str]],
    ) -> None:
        """Send folders; each appears atomically."""

    def with_bundle(self, document: JobDocument) -> JobDocument:
        """Return a job document, with the name of its bundle if its folder is sent in one."""

    def finish_upload(self, folder: Path) -> None:
        """Finish the upload of a job's files."""


class RemoteClient:
    """Client of the zipapp at a site; uploads the zipapp if it is missing.

    Args:
        state: windlass's folder at the site.
        archive: the local zipapp.
        python: Python >= 3.9 at the site.
    """

    def __init__(self, shell: SiteShell, state: PurePosixPath, archive: Path, python: str) -> None:
        self.shell = shell
        self.name = shell.name
        self.has_server = True
        self.archive_at_site = state / "archives" / archive.name
        self._archive = archive
        self._python = python

    def request(
        self, command: str, header: Mapping[str, Any], pieces: Iterable[bytes] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and return the reply.

        Raises:
            WindlassError: raised at the site, or UnreachableError if the connection fails.
        """
        message = pack(header, pieces)
        limit_s = _CLEAR_S if command == "clear" else _TURN_S
        return self._asked(command, message, limit_s + len(message) / _SLOWEST_BYTES_S)

    def _asked(self, command: str, message: bytes | Path, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
        argv = [self._python, "-I", "-S", str(self.archive_at_site), command]
        for is_last in (False, True):
            raw = self._through(argv, message, timeout_s)
            try:
                header, found = unpack(raw.out)
            except ValueError as error:
                if is_last:
                    reason = (raw.err.strip().splitlines() or [f"`{command}` ended with {raw.code}"])[-1]
                    message_ = f"{self.shell.name} sent an invalid answer: {reason}"
                    raise PreconditionError(message_, hint="try again", code="invalid-reply") from error
                self.ensure_archive()
                continue
            if "error" in header:
                raise self._error(header["error"])
            return header, found
        raise AssertionError

    def _through(self, argv: Sequence[str], stdin: bytes | Path, timeout_s: float) -> Any:
        found = _broken.get(self.shell.name)
        if found is not None and time.monotonic() - found[0] < _QUIET_S:
            raise found[1]
        try:
            return self.shell.run_bytes(argv, stdin=stdin, timeout_s=timeout_s)
        except UnreachableError as error:
            _broken[self.shell.name] = (time.monotonic(), error)
            raise

    def _error(self, data: Mapping[str, Any]) -> WindlassError:
        kind = _ERRORS.get(data["exit"], PreconditionError)
        return kind(f"{self.shell.name}: {data['message']}", hint=data["hint"], code=data["code"])

    def with_bundle(self, document: JobDocument) -> JobDocument:
        """Return the job document unchanged, since its folder is sent over ssh."""
        return document

    def finish_upload(self, folder: Path) -> None:
        """Do nothing: the folders were already sent."""

    def ensure_archive(self) -> None:
        """Upload the zipapp; idempotent.

        Raises:
            PreconditionError: the site has no suitable Python or no space.
        """
        self._check_python()
        argv = [self._python, "-I", "-c", _STORE, str(self.archive_at_site), sha256_file(self._archive)]
        size = self._archive.stat().st_size
        answer = self.shell.run(argv, stdin=self._archive, timeout_s=_TURN_S + size / _SLOWEST_BYTES_S)
        words = answer.out.split(maxsplit=2)
        if words[:1] == ["errno"]:
            found = explained(OSError(int(words[1]), os.strerror(int(words[1])), words[2].strip()))
            raise PreconditionError(f"{self.shell.name}: {found.message}", hint=found.hint, code=found.code)
        if answer.code or words != ["stored"]:
            reason = (answer.err.strip().splitlines() or [answer.out.strip()])[-1]
            message = f"{self.shell.name} failed to store the zipapp: {reason}"
            raise PreconditionError(message, hint="try again", code="invalid-reply")

    def _check_python(self) -> None:
        answer = self.shell.run([self._python, "-I", "-c", _ASK_VERSION])
        version = re.search(r"(\d+)\.(\d+)", answer.out)
        hint = "set `env.python` in the site's profile, such as /opt/python/3.11/bin/python3"
        if answer.code or version is None:
            reason = (answer.err.strip().splitlines() or ["no output"])[-1]
            message = f"{self.shell.name}: cannot run `{self._python}`: {reason}"
            raise PreconditionError(message, hint=hint, code="site-python")
        if (int(version[1]), int(version[2])) < _OLDEST_PYTHON:
            message = f"{self.shell.name}: `{self._python}` is Python {version[0]}; windlass needs 3.9 or newer"
            raise PreconditionError(message, hint=hint, code="site-python")

    def send_folders(
        self,
        folders: Mapping[PurePosixPath, Sequence[tuple[str, Path]]],
        *,
        empty: Mapping[PurePosixPath, Sequence[str]],
    ) -> None:
        """Send the missing folders as one archive; each appears atomically, in order.

        Args:
            folders: names and local paths by folder at the site.
            empty: names of their empty subfolders.
        """
        there = self._there([*folders, self.archive_at_site])
        targets = [(str(number), path) for number, path in enumerate(folders) if str(path) not in there]
        if not targets:
            return
        if str(self.archive_at_site) not in there:
            self.ensure_archive()
        with tempfile.TemporaryDirectory(prefix="windlass-ship-") as scratch:
            path = Path(scratch) / "archive"
            with open(path, "w+b") as file:
                write_archive(file, targets, folders, empty)
            self._asked("unpack", path, _TURN_S + path.stat().st_size / _SLOWEST_BYTES_S)

    def _there(self, paths: Iterable[PurePosixPath]) -> set[str]:
        """Return those of the paths that exist at the site."""
        answer = self.shell.run(["sh", "-c", _THERE, "sh", *map(str, paths)])
        return set(answer.out.splitlines())


def write_archive(
    file: BinaryIO,
    targets: Sequence[tuple[str, PurePosixPath]],
    folders: Mapping[PurePosixPath, Sequence[tuple[str, Path]]],
    empty: Mapping[PurePosixPath, Sequence[str]],
) -> None:
    """Write folders as one message for `supervise.remote.framing.FrameReader`; its first line is written last."""
    counting = _Counting(file)
    file.write(bytes(FRAME_LINE_BYTES))
    counting.write(json.dumps({"targets": [(key, str(path)) for key, path in targets]}).encode() + b"\n")
    with tarfile.open(fileobj=cast("BinaryIO", counting), mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for key, path in targets:
            for name in empty.get(path, ()):
                member = tarfile.TarInfo(f"{key}/{name}")
                member.type, member.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(member)
            for name, local in folders[path]:
                archive.add(local, f"{key}/{name}", filter=lambda member: _plain(archive, member))
    file.seek(0)
    file.write(frame_line(counting.digest.hexdigest(), counting.size))


def _plain(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Filter for `tarfile`: keep files, folders and symbolic links; a hard link gets its file's content."""
    archive.inodes.clear()  # type: ignore[attr-defined]
    return member if member.isreg() or member.isdir() or member.issym() else None


class _Counting:
    """Writer that counts the bytes it passes on and computes their digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, piece: bytes) -> int:
        self.digest.update(piece)
        self.size += len(piece)
        return self._file.write(piece)
