"""Immutable references to code, environment and data, and the record of what ran."""

from windlass.pin.code import NO_CODE, CodePin, checkout, pin_code, resolve_code_folder
from windlass.pin.data import DataPin, check_data, pin_data, resolve_data
from windlass.pin.environment import (
    NO_ENVIRONMENT,
    BuiltEnvironment,
    EnvironmentPin,
    ensure_environment,
    pin_environment,
)
from windlass.pin.provenance import ReplicaRecord, collect, host_facts

__all__ = [
    "NO_CODE",
    "NO_ENVIRONMENT",
    "BuiltEnvironment",
    "CodePin",
    "DataPin",
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
    "resolve_code_folder",
    "resolve_data",
]
