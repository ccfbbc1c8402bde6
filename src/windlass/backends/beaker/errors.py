"""Errors from Beaker's client and from grpc, translated to windlass's errors."""

from __future__ import annotations

import re

import grpc  # type: ignore[import-untyped]
from beaker import exceptions as beaker
from requests.exceptions import HTTPError, RequestException

from windlass.core.errors import (
    AccessError,
    NotFoundError,
    PreconditionError,
    UnreachableError,
    UsageError,
    WindlassError,
)

__all__ = ["REFUSALS", "status_of", "translate"]

REFUSALS: tuple[type[Exception], ...] = (
    beaker.BeakerError,
    grpc.RpcError,
    RequestException,
    NotImplementedError,  # raised by the client for a call that the server does not support
    ValueError,  # raised by the client for an invalid name
)
"""All exceptions that the client itself raises."""

_REFUSED = "correct what Beaker's message names, and run the command again"
_STATUS = re.compile(r"\[code=(\d+)\] ?")
_NEW_TOKEN = (
    "get a new one from your user page of Beaker, then: export BEAKER_TOKEN=...; see: windlass beaker config check"  # noqa: S105
)


def status_of(error: Exception) -> int:
    """Return the HTTP status in an error; 0 if it has none."""
    if isinstance(error, HTTPError) and error.response is not None:
        return int(error.response.status_code)
    match = _STATUS.match(str(error))
    return int(match[1]) if match else 0


def translate(error: Exception, what: str) -> WindlassError:
    """Return the WindlassError to raise instead of `error`.

    Args:
        what: what was being done, as in `cancelling experiment 01J...`.
    """
    code = error.code() if isinstance(error, grpc.Call) else None
    status, words = status_of(error), _words(error)
    if code is grpc.StatusCode.UNAUTHENTICATED or status == 401:
        return AccessError(f"Beaker rejected the token, {what}: {words}", hint=_NEW_TOKEN, code="beaker-token")
    if isinstance(error, beaker.BeakerPermissionsError) or status == 403:
        hint = "ask its owner for access, or name another: --workspace ORGANIZATION/NAME"
        return AccessError(f"Beaker denied access, {what}: {words}", hint=hint, code="beaker-forbidden")
    if isinstance(error, (beaker.BeakerWorkspaceNotSet, beaker.BeakerOrganizationNotSet)):
        hint = "name it: --workspace ORGANIZATION/NAME; or set a default: windlass beaker workspace default NAME"
        return UsageError(f"no Beaker workspace is set, {what}", hint=hint, code="beaker-workspace")
    if isinstance(error, beaker.BeakerNotFoundError) or status == 404:
        return NotFoundError(f"Beaker found nothing, {what}: {words}", hint=_spelt(words), code="beaker-not-found")
    if isinstance(error, beaker.BeakerNameConflictError):
        hint = "choose another name: --name NAME"
        return PreconditionError(
            f"the name already exists at Beaker, {what}: {words}", hint=hint, code="already-exists"
        )
    if isinstance(error, (beaker.BeakerServerError, RequestException)) or code in _PASSING:
        return UnreachableError(f"Beaker failed, {what}: {words}", hint="try again later", code="beaker-unreachable")
    return PreconditionError(f"Beaker rejected the request, {what}: {words}", hint=_REFUSED, code="beaker-refused")


_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
)


def _words(error: Exception) -> str:
    """Return Beaker's message as one line."""
    said = error.details() if isinstance(error, grpc.Call) else _STATUS.sub("", str(error))
    return " ".join(str(said or type(error).__name__).split())[:1000]


def _spelt(words: str) -> str:
    return "check the spelling and the workspace" if words else ""
