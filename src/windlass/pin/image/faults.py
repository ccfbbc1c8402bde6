"""Errors from engines, translated to errors with a remedy; pure.

Engines have no error codes, so their messages are matched; unknown messages are shown unchanged.
"""

from __future__ import annotations

import re

from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError, WindlassError
from windlass.pin.image.naming import parse_reference

__all__ = ["explain_fault", "is_passing"]

_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_CORRUPT = re.compile(
    r"verification failed|did not match|unexpected digest|invalid checksum|digest mismatch|does not match|"
    r"archive/tar: invalid|gzip: invalid|unexpected commit digest|filesystem layer verification",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"unauthorized|authentication required|no basic auth|access denied|denied:|\b40[13]\b", re.IGNORECASE
)
_ARCH = re.compile(
    r"no matching manifest|no image found in manifest list for architecture|exec format error", re.IGNORECASE
)
_MISSING = re.compile(r"manifest unknown|not found|name unknown|no such image|does not exist", re.IGNORECASE)
_PASSING = re.compile(
    r"connection (?:reset|refused)|unexpected eof|\beof\b|i/o timeout|tls handshake timeout|timeout awaiting|"
    r"broken pipe|temporary failure|too many requests|\b(?:429|500|502|503|504)\b|service unavailable|"
    r"bad gateway|internal server error|context deadline exceeded|no route to host|blob upload (?:unknown|invalid)",
    re.IGNORECASE,
)


def is_passing(said: str) -> bool:
    """Return True if a retry may help, as after a lost connection or with an overloaded server."""
    return _PASSING.search(said) is not None and not (_FULL.search(said) or _LOGIN.search(said))


def explain_fault(said: str, what: str, reference: str) -> WindlassError:
    """Return the error to raise for an engine's message about a failed command.

    Args:
        what: the command as a user would type it, `docker pull python:3.12`.
        reference: the image.
    """
    last = _last(said)
    if _FULL.search(said):
        return PreconditionError(
            f"`{what}`: no space left: {last}",
            hint="free disk space (`docker system df` shows the usage; `windlass image ls` lists windlass's images)",
            code="disk-full",
        )
    if _CORRUPT.search(said):
        return PreconditionError(
            f"`{what}`: the registry's content does not match the digest: {last}",
            hint="push the image again, or use another copy; nothing of this one was used",
            code="digest-mismatch",
        )
    if _ARCH.search(said):
        return PreconditionError(
            f"`{what}`: no image for this machine's architecture: {last}",
            hint="use an image for this architecture, or run on a machine of the image's architecture",
            code="wrong-architecture",
        )
    if is_passing(said):
        return UnreachableError(
            f"`{what}`: the connection failed repeatedly: {last}",
            hint="try again; downloaded layers are kept",
            code="remote-unreachable",
        )
    if _LOGIN.search(said):
        registry = _registry(reference)
        return AccessError(
            f"`{what}`: the registry rejected the login: {last}",
            hint=f"docker login {registry}".strip(),
            code="remote-forbidden",
        )
    if _MISSING.search(said):
        return NotFoundError(f"`{what}`: {last}", hint="check the name and the tag", code="image-not-found")
    return PreconditionError(f"`{what}` failed: {last}", hint="run it yourself for more output", code="engine-failed")


def _registry(reference: str) -> str:
    try:
        found = parse_reference(reference).registry
    except PreconditionError:
        return ""
    return "" if found == "docker.io" else found


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
