"""Secrets: stores of values, and their delivery to runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.secrets.delivery import deliver, sweep_deliveries
    from windlass.secrets.lookup import ENVIRONMENT_PREFIX, Secret, Secrets, open_secrets
    from windlass.secrets.store import SecretStore, check_name, check_value
    from windlass.secrets.vault import Vault
    from windlass.supervise.remote.delivery import read_delivery, remove_delivery
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.secrets.delivery": ("deliver", "sweep_deliveries"),
            "windlass.secrets.lookup": ("ENVIRONMENT_PREFIX", "Secret", "Secrets", "open_secrets"),
            "windlass.secrets.store": ("SecretStore", "check_name", "check_value"),
            "windlass.secrets.vault": ("Vault",),
            "windlass.supervise.remote.delivery": ("read_delivery", "remove_delivery"),
        },
    )

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Secret",
    "SecretStore",
    "Secrets",
    "Vault",
    "check_name",
    "check_value",
    "deliver",
    "open_secrets",
    "read_delivery",
    "remove_delivery",
    "sweep_deliveries",
]
