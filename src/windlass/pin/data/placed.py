"""Paths of pinned data on this machine."""

from __future__ import annotations

from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.pin.data.pinned import DataPin, DataPlaces
from windlass.pin.data.pinning import pin_data, resolve_data

__all__ = ["place_data"]


def place_data(pin: DataPin, base: Path, places: DataPlaces) -> Path:
    """The path of pinned data; what is stored is placed as a read-only tree, and fetched again where it is gone. Blocks.

    Raises:
        PreconditionError: it changed at its source (`data-changed`), the store is damaged, no space.
        WindlassError: as `pin_data`.
    """
    if not pin.is_stored:
        return resolve_data(pin.name, pin.source, base, places=places)
    from windlass.store import place  # lazy: most runs pin only files

    if not places.store.has(pin.digest):
        again = pin_data(pin.name, pin.source, base, places=places)
        if again.digest != pin.digest:
            raise PreconditionError(
                f"data `{pin.name}`: {pin.source} differs from what was pinned: "
                f"sha256 {again.digest[:12]}..., not {pin.digest[:12]}...",
                hint=f"`windlass data pull` it from a store that has {pin.digest[:12]}, or launch the experiment again",
                code="data-changed",
            )
    version = places.store.read(pin.digest)
    places.store.touch(pin.digest)
    return place(places.store, version, places.placed, name=pin.file_name)
