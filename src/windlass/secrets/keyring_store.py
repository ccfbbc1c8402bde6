"""Secrets in the desktop keyring (extra `keyring`): Secret Service, macOS Keychain, Windows Credential Locker."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, cast

from windlass.core.errors import AccessError, UsageError
from windlass.core.files import lock
from windlass.core.json_text import decode_json
from windlass.secrets.store import check_name, check_value, no_such_secret

__all__ = ["KeyringStore"]

_SERVICE = "windlass"
_NAMES = "windlass:names"  # keyrings cannot list names; `:` is not allowed in a secret's name


class _Keyring(Protocol):
    def get_password(self, service: str, username: str) -> str | None: ...

    def set_password(self, service: str, username: str, password: str) -> None: ...

    def delete_password(self, service: str, username: str) -> None: ...


class KeyringStore:
    """Store that keeps secrets under the service `windlass` in the system's keyring; values are text.

    Args:
        folder: folder of a lock file, which protects the list of names from concurrent writers.
    """

    label = "keyring"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of the secrets that windlass stored, sorted."""
        with _keyring() as keyring:
            return self._names(keyring)

    def get(self, name: str) -> bytes:
        """Return the value of a secret, even if another program stored it."""
        with _keyring() as keyring:
            value = keyring.get_password(_SERVICE, name)
            if value is None:
                raise no_such_secret(name, self._names(keyring))
            return value.encode()

    def set(self, name: str, value: bytes) -> None:
        """Store or replace the value of a secret."""
        check_name(name)
        check_value(name, value)
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"the value of `{name}` is not text (UTF-8)",
                hint="a keyring stores only text; use the vault, or encode the value",
                code="invalid-value",
            ) from None
        with self._locked(), _keyring() as keyring:
            keyring.set_password(_SERVICE, name, text)
            self._save_names(keyring, {*self._names(keyring), name})

    def remove(self, name: str) -> None:
        """Remove a secret."""
        with self._locked(), _keyring() as keyring:
            names = self._names(keyring)
            if keyring.get_password(_SERVICE, name) is None:
                raise no_such_secret(name, names)
            keyring.delete_password(_SERVICE, name)
            self._save_names(keyring, set(names) - {name})

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock(self._folder / "lock"):
            yield

    @staticmethod
    def _names(keyring: _Keyring) -> list[str]:
        return sorted(decode_json(keyring.get_password(_SERVICE, _NAMES) or "[]"))

    @staticmethod
    def _save_names(keyring: _Keyring, names: Iterable[str]) -> None:
        keyring.set_password(_SERVICE, _NAMES, json.dumps(sorted(names)))


@contextlib.contextmanager
def _keyring() -> Iterator[_Keyring]:
    try:
        import keyring  # lazy: an extra, and slow to import
        from keyring.errors import KeyringError
    except ImportError as error:
        raise AccessError(
            "WINDLASS_VAULT is `keyring`, but the package keyring is not installed",
            hint="pip install 'windlass[keyring]', or unset WINDLASS_VAULT to use the vault",
            code="vault-unreadable",
        ) from error
    try:
        yield cast("_Keyring", keyring)
    except KeyringError as error:
        raise AccessError(
            f"cannot access the keyring: {type(error).__name__}",
            hint="unlock it, or unset WINDLASS_VAULT to use the vault",
            code="vault-unreadable",
        ) from error
