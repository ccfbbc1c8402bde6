"""Environment pins: a lock file or an interpreter to a cached environment that is built once."""

from windlass.pin.environment.building import ensure_environment
from windlass.pin.environment.pinned import (
    NO_ENVIRONMENT,
    BuiltEnvironment,
    EnvironmentKind,
    EnvironmentPin,
    LocalPackage,
)
from windlass.pin.environment.pinning import pin_environment

__all__ = [
    "NO_ENVIRONMENT",
    "BuiltEnvironment",
    "EnvironmentKind",
    "EnvironmentPin",
    "LocalPackage",
    "ensure_environment",
    "pin_environment",
]
