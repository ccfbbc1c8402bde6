"""Content-addressed data: immutable versions, local or in a bucket; transfer; gc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.store.collecting import Collected, collect, collect_remote
    from windlass.store.data_version import Version, VersionEntry
    from windlass.store.local import Alias, LocalStore
    from windlass.store.placing import check_placed, place, placed_path, remove_placed, sweep_placed
    from windlass.store.remote import RemoteStore
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.store.collecting": ("Collected", "collect", "collect_remote"),
            "windlass.store.local": ("Alias", "LocalStore"),
            "windlass.store.placing": ("check_placed", "place", "placed_path", "remove_placed", "sweep_placed"),
            "windlass.store.remote": ("RemoteStore",),
            "windlass.store.data_version": ("VersionEntry", "Version"),
        },
    )

__all__ = [
    "Alias",
    "Collected",
    "LocalStore",
    "RemoteStore",
    "Version",
    "VersionEntry",
    "check_placed",
    "collect",
    "collect_remote",
    "place",
    "placed_path",
    "remove_placed",
    "sweep_placed",
]
