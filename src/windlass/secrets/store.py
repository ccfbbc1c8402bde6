"""Protocol of secret stores, and checks of names and values."""

from __future__ import annotations

import re
from typing import Protocol

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.names import nearest

__all__ = ["MAX_VALUE_BYTES", "MIN_VALUE_BYTES", "SecretStore", "check_name", "check_value", "no_such_secret"]

MIN_VALUE_BYTES = 4
"""Minimum length; shorter values occur in ordinary output and cannot be masked in logs."""

MAX_VALUE_BYTES = 64 << 10
"""Maximum length; an environment variable is limited to 128 KiB (Linux, MAX_ARG_STRLEN)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class SecretStore(Protocol):
    """Store of secrets. Every method may do I/O; every change is atomic."""

    @property
    def label(self) -> str:
        """Return the name that listings show for the store."""

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted."""

    def get(self, name: str) -> bytes:
        """Return the value of a secret. Raises NotFoundError with code `secret-not-found`."""

    def set(self, name: str, value: bytes) -> None:
        """Store or replace the value of a secret. Raises UsageError with code `invalid-value`."""

    def remove(self, name: str) -> None:
        """Remove a secret. Raises NotFoundError with code `secret-not-found`."""


def check_name(name: str) -> None:
    """Raise if a name is not valid for an environment variable."""
    if not _NAME.match(name):
        raise UsageError(
            f"invalid secret name `{name}`",
            hint="a name has letters, digits and `_`, like the variable that it becomes: HF_TOKEN",
            code="invalid-name",
        )


def check_value(name: str, value: bytes) -> None:
    """Raise if a value cannot be delivered or redacted; errors never contain the value."""
    if not value:
        raise _refused(name, "is empty", "pass the value on standard input")
    if b"\0" in value:
        raise _refused(
            name,
            "contains a NUL byte",
            "environment variables cannot contain one; encode the value, for example with base64",
        )
    if len(value.strip()) < MIN_VALUE_BYTES:
        hint = f"use at least {MIN_VALUE_BYTES} bytes, or set a short value that is not secret under `env.vars`"
        raise _refused(name, f"is shorter than {MIN_VALUE_BYTES} bytes and cannot be masked in logs", hint)
    if len(value) > MAX_VALUE_BYTES:
        raise _refused(name, f"has {len(value)} bytes", f"a secret has at most {MAX_VALUE_BYTES >> 10} KiB")


def no_such_secret(name: str, names: list[str]) -> NotFoundError:
    """Return the error for an unknown secret."""
    close = nearest(name, names)
    hint = f"did you mean `{close}`?" if close else "list secrets: windlass secret ls"
    return NotFoundError(f"no secret `{name}`", hint=hint, code="secret-not-found")


def _refused(name: str, problem: str, hint: str) -> UsageError:
    return UsageError(f"the value of `{name}` {problem}", hint=hint, code="invalid-value")
