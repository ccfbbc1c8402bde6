"""Server at a site: reads one request from standard input, writes one reply to standard output.

The reply is a message of `windlass.supervise.remote.framing`; if the request failed, its header has `error`.
"""

from __future__ import annotations

import errno
import os
from typing import Any, BinaryIO

from windlass.core.errors import PreconditionError, UnreachableError, WindlassError
from windlass.supervise.remote.framing import pack
from windlass.supervise.remote.sync import exchange_news, fetch_files
from windlass.supervise.remote.unpack import receive_folders, receive_secrets

__all__ = ["COMMANDS", "explained", "serve"]

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
