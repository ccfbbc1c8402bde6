"""Lookup of secrets, first in the environment (for CI), then in the user's store."""

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
    """Value of a secret and its source; `repr` does not show the value.

    Attributes:
        source: `environment`, `vault` or `keyring`.
    """

    name: str
    value: bytes = field(repr=False)
    source: str


def open_secrets(home: Path, environment: Mapping[str, str] | None = None) -> Secrets:
    """Return the user's secrets, from the store that WINDLASS_VAULT names: `vault` (default) or `keyring`.

    Args:
        home: WINDLASS_HOME.
        environment: environment variables; this process's by default.
    """
    environment = os.environ if environment is None else environment
    choice = environment.get(_CHOICE, "") or Vault.label
    stores = {store.label: store for store in (Vault, KeyringStore)}
    if choice not in stores:
        close = nearest(choice, stores)
        raise UsageError(
            f"unknown store `{choice}` in {_CHOICE}",
            hint=f"did you mean `{close}`?" if close else "set it to `vault` or `keyring`",
            code="invalid-value",
        )
    return Secrets(stores[choice](home / "vault"), environment)


class Secrets:
    """Secrets in a store and in the environment, which takes precedence.

    `WINDLASS_SECRET_<NAME>` is the secret `<NAME>`. An empty variable is ignored, because CI systems set it for jobs
    that may not see the value.
    """

    def __init__(self, store: SecretStore, environment: Mapping[str, str]) -> None:
        self.store = store
        self._environment = environment

    def find(self, name: str) -> Secret | None:
        """Return a secret, or None. Raises UsageError for an invalid value in the environment."""
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
        """Return the source of every secret by name, sorted."""
        found = dict.fromkeys(self.store.names(), self.store.label)
        for variable, value in self._environment.items():
            if variable.startswith(ENVIRONMENT_PREFIX) and value:
                found[variable.removeprefix(ENVIRONMENT_PREFIX)] = "environment"
        return dict(sorted(found.items()))

    def require(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the values of all `names`.

        Raises:
            AccessError: secrets are missing (`secret-missing`); the message names all of them.
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
