"""Errors in remote requests, with hints."""

from __future__ import annotations

import socket
import urllib.error

from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError, WindlassError

__all__ = ["is_passing", "lacks_extra", "remote_error"]

_PASSING = (408, 425, 429, 500, 502, 503, 504)
_CREDENTIALS = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "windlass secret set HF_TOKEN (or export HF_TOKEN=...), and accept the terms of gated data on its page",
}


def remote_error(url: str, error: Exception) -> WindlassError:
    """Return the error for a failed request; a WindlassError is returned unchanged."""
    if isinstance(error, WindlassError):
        return error
    status = _status(error)
    scheme = url.partition(":")[0]
    text = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
    if isinstance(error, PermissionError) or status in (401, 403) or type(error).__name__ == "NoCredentialsError":
        why = f"HTTP {status}" if status else text
        hint = _CREDENTIALS.get(scheme, "check the URL and your credentials")
        return AccessError(f"access to {url} denied ({why})", hint=hint, code="remote-forbidden")
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return NotFoundError(f"nothing at {url}", hint="check the URL: names are case-sensitive", code="file-not-found")
    why = f"HTTP {status}" if status else text
    return UnreachableError(
        f"request to {url} failed ({why})",
        hint="try again: the transfer continues where it stopped",
        code="remote-unreachable",
    )


def is_passing(error: BaseException) -> bool:
    """Return whether a retry may succeed, as after a timeout or from an overloaded server."""
    status = _status(error)
    if status:
        return status in _PASSING
    if isinstance(error, (FileNotFoundError, PermissionError, NotImplementedError, WindlassError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError, socket.timeout, urllib.error.URLError, EOFError)):
        return True
    name = f"{type(error).__module__}.{type(error).__name__}"
    return name.startswith(("aiohttp.", "botocore.", "aiobotocore.", "http.client.", "gcsfs.")) or isinstance(
        error, OSError
    )


def lacks_extra(url: str, error: ImportError | ValueError) -> PreconditionError:
    """Return the error for a store or source that needs a library that is not installed."""
    scheme, colon, _ = url.partition(":")
    what = f"`{scheme}:`" if colon else f"the store `{url}`"
    return PreconditionError(
        f"{what} needs a library that is not installed ({getattr(error, 'name', '') or error})",
        hint="pip install 'windlass[data]'",
        code="extra-missing",
    )


def _status(error: BaseException) -> int:
    """Return the HTTP status in an error from urllib, aiohttp, botocore or gcsfs; 0 if it has none."""
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            return 0
        if isinstance(seen, urllib.error.HTTPError):
            return seen.code
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
        status = getattr(seen, "status", None) or getattr(seen, "code", None)
        if isinstance(status, int):
            return status
        seen = seen.__cause__
    return 0
