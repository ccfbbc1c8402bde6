"""Environment pins: from a lock file or an interpreter to a cached environment, built once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.pin.environment.pinned import (
    NO_ENVIRONMENT,
    BuiltEnvironment,
    EnvironmentKind,
    EnvironmentPin,
    LocalPackage,
)

if TYPE_CHECKING:
    from windlass.pin.environment.ensuring import ensure_environment
    from windlass.pin.environment.pinning import pin_environment
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.pin.environment.ensuring": ("ensure_environment",),
            "windlass.pin.environment.pinning": ("pin_environment",),
        },
    )

__all__ = [
    "NO_ENVIRONMENT",
    "BuiltEnvironment",
    "EnvironmentKind",
    "EnvironmentPin",
    "LocalPackage",
    "ensure_environment",
    "pin_environment",
]
