"""Vault: all secrets in one age-encrypted file, next to its key.

    <folder>/            0700
        identity         0600, the age key, created on first use
        vault.age        0600, encrypted JSON: name to base64 of the value
        lock             held while the vault is changed

Encryption at rest protects copies in backups and synced folders, and files with wrong permissions. It does not protect
against programs that run under your own account.

Source: https://age-encryption.org/v1, implemented by pyrage.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

from windlass.core.errors import AccessError
from windlass.core.files import lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.secrets.store import check_name, check_value, no_such_secret
from windlass.supervise.remote.delivery import check_private

__all__ = ["AgeError", "Vault", "decrypt", "encrypt", "new_identity"]


class AgeError(Exception):
    """Error for a key or file that age rejects; the message contains neither."""


def new_identity() -> str:
    """Return a new secret key, in the format that age-keygen writes."""
    import pyrage  # type: ignore[import-untyped]  # lazy: a compiled module that most commands do not need

    return str(pyrage.x25519.Identity.generate())


def encrypt(content: bytes, identity: str) -> bytes:
    """Encrypt `content` for the owner of the key `identity`."""
    import pyrage  # lazy: see new_identity

    try:
        return bytes(pyrage.encrypt(content, [pyrage.x25519.Identity.from_str(identity).to_public()]))
    except pyrage.IdentityError as error:
        raise AgeError("invalid age key") from error


def decrypt(content: bytes, identity: str) -> bytes:
    """Decrypt `content` with the key `identity`. Raises AgeError for a wrong key or changed content."""
    import pyrage  # lazy: see new_identity

    try:
        return bytes(pyrage.decrypt(content, [pyrage.x25519.Identity.from_str(identity)]))
    except pyrage.IdentityError as error:
        raise AgeError("invalid age key") from error
    except pyrage.DecryptError as error:
        raise AgeError(str(error)) from error


_SCHEMA = 1


class Vault:
    """Store that keeps secrets in an age-encrypted file; safe for concurrent writers.

    Args:
        folder: created by the first `set`, with mode 0700.
    """

    label = "vault"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "vault.age"
        self._identity = folder / "identity"

    def names(self) -> list[str]:
        """Return the names of all secrets, sorted."""
        return sorted(self._read())

    def get(self, name: str) -> bytes:
        """Return the value of a secret."""
        values = self._read()
        if name not in values:
            raise no_such_secret(name, sorted(values))
        return values[name]

    def set(self, name: str, value: bytes) -> None:
        """Store or replace the value of a secret, durably."""
        check_name(name)
        check_value(name, value)
        self._change(lambda values: values.update({name: value}))

    def remove(self, name: str) -> None:
        """Remove a secret."""

        def forget(values: dict[str, bytes]) -> None:
            if name not in values:
                raise no_such_secret(name, sorted(values))
            del values[name]

        self._change(forget)

    def _change(self, change: Callable[[dict[str, bytes]], None]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self._folder)
        with lock(self._folder / "lock"):
            values = self._read()
            change(values)
            self._write(values)

    def _read(self) -> dict[str, bytes]:
        """Read the values of all secrets; errors never contain content of the files."""
        try:
            check_private(self._folder)
            check_private(self._file)
            content = self._file.read_bytes()
        except FileNotFoundError:
            return {}
        except PermissionError as error:
            raise _unreadable(f"no permission to read {self._file}", f"ls -l {self._folder}") from error
        remedy = f"remove {self._file} and set the secrets again"
        try:
            values = decode_json(decrypt(content, self._load_identity()))["values"]
            return {name: base64.b64decode(value, validate=True) for name, value in values.items()}
        except AgeError as error:
            problem = f"cannot decrypt {self._file} with {self._identity}: {error}"
            raise _unreadable(problem, f"restore the two matching files, or {remedy}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            # `from None`: a decoding error quotes the content
            raise _unreadable(f"{self._file} is not a vault", remedy) from None

    def _write(self, values: dict[str, bytes]) -> None:
        encoded = {name: base64.b64encode(value).decode() for name, value in values.items()}
        content = json.dumps({"schema": _SCHEMA, "values": encoded}).encode()
        identity = self._load_identity() if self._identity.exists() else self._make_identity()
        write_atomic(self._file, encrypt(content, identity), mode=0o600)

    def _make_identity(self) -> str:
        identity = new_identity()
        write_atomic(self._identity, f"{identity}\n".encode(), mode=0o600)
        return identity

    def _load_identity(self) -> str:
        remedy = f"restore it from a backup, or remove {self._file} and set the secrets again"
        try:
            check_private(self._identity)
            return self._identity.read_text(encoding="ascii").strip()
        except FileNotFoundError as error:
            raise _unreadable(f"the key of the vault is missing: {self._identity}", remedy) from error
        except (PermissionError, UnicodeDecodeError):
            raise _unreadable(f"no valid age key in {self._identity}", remedy) from None


def _unreadable(problem: str, hint: str) -> AccessError:
    return AccessError(problem, hint=hint, code="vault-unreadable")
