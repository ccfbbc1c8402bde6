"""Server at a site: reads one request from standard input, writes one reply to standard output.

The reply is a message of `windlass.supervise.remote.framing`; if the request failed, its header has `error`.

Uploads are folders in one archive, and secrets; each appears atomically. An existing folder is not changed: names of uploads
are unique to their content, or to one run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any, BinaryIO

from windlass.core.errors import PreconditionError, UnreachableError, WindlassError
from windlass.core.files import check_locks, fsync_directory, write_atomic
from windlass.core.tar import open_stream
from windlass.supervise.remote.delivery import check_private, remove_delivery
from windlass.supervise.remote.framing import FrameReader, pack, unpack
from windlass.supervise.remote.sync import exchange_news, fetch_files

__all__ = ["COMMANDS", "explained", "receive_folders", "receive_secrets", "serve"]

_PIECE_BYTES = 1 << 20
_STALE_S = 86400.0


def receive_folders(source: BinaryIO) -> dict[str, Any]:
    """Unpack an incoming archive; its folders appear in the order of its header.

    Returns:
        `made`: the folders that were created.

    Raises:
        ValueError: the archive was truncated or changed on the way; nothing was created.
        OSError: no space or no permission; no folder exists in part.
        PreconditionError: the file system has no locks (`no-file-locks`).
    """
    inflow = FrameReader(source)
    targets = {str(key): Path(path) for key, path in inflow.header()["targets"]}
    missing = {key: target for key, target in targets.items() if not target.exists()}
    fresh: dict[str, Path] = {}
    try:
        for key, target in missing.items():
            fresh[key] = _fresh_folder(target)
            check_locks(fresh[key])
        try:
            with open_stream(inflow) as archive:
                for member in archive:
                    key, _, path = member.name.partition("/")
                    if key in fresh and path:
                        _extract(archive, member, fresh[key], path)
        except tarfile.TarError as error:
            raise ValueError(f"the archive is damaged: {error}") from error
        inflow.finish()
        return {"made": [str(target) for key, target in missing.items() if _move(fresh[key], target)]}
    finally:
        for folder in fresh.values():
            shutil.rmtree(str(folder), ignore_errors=True)


def _fresh_folder(target: Path) -> Path:
    """Create a new folder beside the target, and remove those that killed calls left behind."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in target.parent.glob(f".{target.name}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(str(left), ignore_errors=True)
    fresh = target.parent / f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.part"
    fresh.mkdir(mode=0o700)
    return fresh


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, name: str) -> None:
    """Create one member (folder, file or symbolic link), but nothing through a link or outside the folder."""
    path = folder / name
    is_outside = os.path.isabs(name) or ".." in Path(name).parts
    if is_outside or os.path.realpath(str(path.parent)) != os.path.join(os.path.realpath(str(folder)), *_parents(name)):
        raise ValueError(f"the archive contains {name!r}, which is outside its folder")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if member.isdir():
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(member.mode & 0o777 | 0o700)
    elif member.issym():
        os.symlink(member.linkname, str(path))
    elif member.isreg():
        content = archive.extractfile(member)
        assert content is not None
        descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o777)
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(content, file, _PIECE_BYTES)
        os.utime(str(path), (member.mtime, member.mtime))


def _parents(name: str) -> list[str]:
    return [part for part in Path(name).parent.parts if part != "."]


def _move(fresh: Path, target: Path) -> bool:
    """Rename a finished folder to its final path; return False if another process was faster."""
    try:
        os.rename(str(fresh), str(target))
    except OSError:
        if target.is_dir():
            return False
        raise
    fsync_directory(target.parent)
    return True


def receive_secrets(source: BinaryIO) -> dict[str, Any]:
    """Write a delivery of secrets that only its owner can read, or remove it if the message has none; idempotent.

    Raises:
        AccessError: other users can read the folder.
    """
    header, pieces = unpack(source.read())
    path = Path(header["path"])
    if not path.is_absolute() or path.parent.name != "delivery":
        raise PreconditionError(
            f"{path} is not in a `delivery` folder, refusing to write secrets there", code="plan-broken"
        )
    if not pieces:
        remove_delivery(path)
        return {}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(path.parent)
    write_atomic(path, pieces[0], mode=0o600)
    return {}


COMMANDS = ("unpack", "deliver", "sync", "fetch", "clear")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def serve(command: str, source: BinaryIO, sink: BinaryIO) -> int:
    """Execute one of `COMMANDS` and reply; return 0 if a reply was sent."""
    pieces: list[bytes] = []
    try:
        header, pieces = _done(command, source)
    except (WindlassError, OSError, ValueError, KeyError) as error:
        found = explained(error)
        header = {"error": {"message": found.message, "hint": found.hint, "code": found.code, "exit": found.exit_code}}
    sink.write(pack(header, pieces))
    sink.flush()
    return 0


def _done(command: str, source: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    if command == "unpack":
        return receive_folders(source), []
    if command == "deliver":
        return receive_secrets(source), []
    if command == "clear":
        from windlass.supervise.remote.gc import clear  # lazy: only `windlass gc` needs it

        return clear(source), []
    return (exchange_news if command == "sync" else fetch_files)(source)


def explained(error: Exception) -> WindlassError:
    """Convert an exception to the error that is reported to the client."""
    if isinstance(error, WindlassError):
        return error
    if not isinstance(error, OSError):
        return UnreachableError(str(error), hint="the connection may have broken; try again", code="invalid-reply")
    place = error.filename or error.filename2 or "the shared folder"
    if error.errno in _FULL:
        message = f"cannot write {place}: {os.strerror(error.errno or 0)}"
        return PreconditionError(message, hint="free some space or quota at the site and try again", code="disk-full")
    if error.errno in _FORBIDDEN:
        message = f"no permission for {place}: {os.strerror(error.errno or 0)}"
        return PreconditionError(
            message, hint="set `fs.shared` in the site profile to a folder that you can write to", code="site-broken"
        )
    hint = "check `fs.shared` in the site profile"
    return PreconditionError(f"{place}: {error.strerror or error}", hint=hint, code="site-broken")
