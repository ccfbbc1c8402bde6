"""What every keeper of secrets can do, and which names and values it accepts."""

from __future__ import annotations

import re
from typing import Protocol

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.names import nearest

__all__ = ["MAX_VALUE_BYTES", "MIN_VALUE_BYTES", "SecretStore", "check_name", "check_value", "no_such_secret"]

MIN_VALUE_BYTES = 4
"""Shorter values cannot be told from ordinary output, so they could not be kept out of logs."""

MAX_VALUE_BYTES = 64 << 10
"""A single environment variable may have 128 KiB (Linux, MAX_ARG_STRLEN)."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class SecretStore(Protocol):
    """A keeper of secrets; every method may do I/O, every change is whole or not done."""

    @property
    def label(self) -> str:
        """What a listing says about where a value comes from."""

    def names(self) -> list[str]:
        """Names of all secrets, sorted."""

    def get(self, name: str) -> bytes:
        """The value; raises NotFoundError with code `no-such-secret`."""

    def set(self, name: str, value: bytes) -> None:
        """Keep or replace a value; raises UsageError with code `secret-refused`."""

    def remove(self, name: str) -> None:
        """Forget a value; raises NotFoundError with code `no-such-secret`."""


def check_name(name: str) -> None:
    """Refuse a name that no environment variable can have."""
    if not _NAME.match(name):
        raise UsageError(
            f"`{name}` cannot name a secret",
            hint="a secret is named like the variable it becomes: letters, digits and `_`, as in HF_TOKEN",
            code="secret-refused",
        )


def check_value(name: str, value: bytes) -> None:
    """Refuse a value that cannot be delivered or hidden; no error ever quotes the value."""
    if not value:
        raise _refused(name, "is empty", "give the value on standard input")
    if b"\0" in value:
        raise _refused(
            name, "holds a NUL byte", "no environment variable can hold one; encode the value, as with base64"
        )
    if len(value.strip()) < MIN_VALUE_BYTES:
        hint = f"give at least {MIN_VALUE_BYTES} bytes; put what is that short, and hardly secret, under `env.vars`"
        raise _refused(name, f"is shorter than {MIN_VALUE_BYTES} bytes and could not be hidden in logs", hint)
    if len(value) > MAX_VALUE_BYTES:
        raise _refused(name, f"has {len(value)} bytes", f"at most {MAX_VALUE_BYTES >> 10} KiB fit into a variable")


def no_such_secret(name: str, names: list[str]) -> NotFoundError:
    """The error for a name that the store does not have."""
    close = nearest(name, names)
    hint = f"did you mean `{close}`?" if close else "`windlass secret ls` lists them"
    return NotFoundError(f"there is no secret `{name}`", hint=hint, code="no-such-secret")


def _refused(name: str, problem: str, hint: str) -> UsageError:
    return UsageError(f"the value of `{name}` {problem}", hint=hint, code="secret-refused")
