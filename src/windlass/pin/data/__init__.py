"""Data pins: the source of data and the digest of its content; remote data is fetched into the store.

Digests of every source follow the rule of `windlass.store.data_version`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.pin.data.pinned import DataPin, DataPlaces

if TYPE_CHECKING:
    from windlass.pin.data.pinning import check_data, pin_data, place_data, resolve_data
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.pin.data.pinning": ("check_data", "pin_data", "place_data", "resolve_data"),
        },
    )

__all__ = ["DataPin", "DataPlaces", "check_data", "pin_data", "place_data", "resolve_data"]
