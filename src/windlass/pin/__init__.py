"""Immutable references to code, environment and data, and the record of what ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.pin.code import NO_CODE, CodePin, checkout, pin_code, resolve_code_folder
    from windlass.pin.data import DataPin, DataPlaces, check_data, pin_data, place_data, resolve_data
    from windlass.pin.environment import (
        NO_ENVIRONMENT,
        BuiltEnvironment,
        EnvironmentPin,
        ensure_environment,
        pin_environment,
    )
    from windlass.pin.provenance import ReplicaRecord, collect, host_facts
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.pin.code": ("NO_CODE", "CodePin", "checkout", "pin_code", "resolve_code_folder"),
            "windlass.pin.data": ("DataPin", "DataPlaces", "check_data", "pin_data", "place_data", "resolve_data"),
            "windlass.pin.environment": (
                "NO_ENVIRONMENT",
                "BuiltEnvironment",
                "EnvironmentPin",
                "ensure_environment",
                "pin_environment",
            ),
            "windlass.pin.provenance": ("ReplicaRecord", "collect", "host_facts"),
        },
    )

__all__ = [
    "NO_CODE",
    "NO_ENVIRONMENT",
    "BuiltEnvironment",
    "CodePin",
    "DataPin",
    "DataPlaces",
    "EnvironmentPin",
    "ReplicaRecord",
    "check_data",
    "checkout",
    "collect",
    "ensure_environment",
    "host_facts",
    "pin_code",
    "pin_data",
    "pin_environment",
    "place_data",
    "resolve_code_folder",
    "resolve_data",
]
