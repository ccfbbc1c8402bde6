"""Find the value of a secret: first in the environment (for CI), then in the store the user chose."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import AccessError, NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.secrets.keyring_store import KeyringStore
from windlass.secrets.store import SecretStore, check_name, check_value
from windlass.secrets.vault import Vault

__all__ = ["ENVIRONMENT_PREFIX", "Secret", "Secrets", "open_secrets"]

ENVIRONMENT_PREFIX = "WINDLASS_SECRET_"
_CHOICE = "WINDLASS_VAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A value and where it came from; its `repr` does not show the value.

    Attributes:
        source: `environment`, `vault` or `keyring`.
    """

    name: str
    value: bytes = field(repr=False)
    source: str


def open_secrets(home: Path, environment: Mapping[str, str] | None = None) -> Secrets:
    """The user's secrets, in the store that WINDLASS_VAULT names (`vault`, the default, or `keyring`).

    Args:
        home: WINDLASS_HOME.
        environment: this process's by default.
    """
    environment = os.environ if environment is None else environment
    choice = environment.get(_CHOICE, "") or Vault.label
    stores = {store.label: store for store in (Vault, KeyringStore)}
    if choice not in stores:
        close = nearest(choice, stores)
        raise UsageError(
            f"{_CHOICE} is `{choice}`",
            hint=f"did you mean `{close}`?" if close else "it may be `vault` or `keyring`",
            code="unknown-vault",
        )
    return Secrets(stores[choice](home / "vault"), environment)


class Secrets:
    """A store, and the environment that takes precedence over it.

    `WINDLASS_SECRET_<NAME>` gives the secret `<NAME>`; an empty one counts as not there, as CI systems give it to jobs that
    may not see the value.
    """

    def __init__(self, store: SecretStore, environment: Mapping[str, str]) -> None:
        self.store = store
        self._environment = environment

    def find(self, name: str) -> Secret | None:
        """The secret, or None; raises UsageError when the environment gives a value that cannot be used."""
        check_name(name)
        given = self._environment.get(ENVIRONMENT_PREFIX + name, "")
        if given:
            value = os.fsencode(given)
            check_value(ENVIRONMENT_PREFIX + name, value)
            return Secret(name=name, value=value, source="environment")
        try:
            return Secret(name=name, value=self.store.get(name), source=self.store.label)
        except NotFoundError:
            return None

    def sources(self) -> dict[str, str]:
        """Name to source of every secret there is, sorted by name."""
        found = dict.fromkeys(self.store.names(), self.store.label)
        for variable, value in self._environment.items():
            if variable.startswith(ENVIRONMENT_PREFIX) and value:
                found[variable.removeprefix(ENVIRONMENT_PREFIX)] = "environment"
        return dict(sorted(found.items()))

    def require(self, names: Iterable[str]) -> dict[str, bytes]:
        """The values of all `names`.

        Raises:
            AccessError: code `secret-missing`; names every one that is missing.
        """
        values, missing = {}, []
        for name in dict.fromkeys(names):
            secret = self.find(name)
            if secret is None:
                missing.append(name)
            else:
                values[name] = secret.value
        if not missing:
            return values
        quoted = ", ".join(f"`{name}`" for name in missing)
        raise AccessError(
            f"no value for the {'secret' if len(missing) == 1 else 'secrets'} {quoted}",
            hint="; ".join(f"windlass secret set {name}" for name in missing),
            code="secret-missing",
        )
