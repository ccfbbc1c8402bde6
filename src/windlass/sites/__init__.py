"""Sites: named places with their profiles, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.sites.profile import Partition, Profile

if TYPE_CHECKING:
    from windlass.sites.store import find_site, save_site, shipped_names, site_names, sites_folder
else:
    __getattr__ = lazy_names(
        __name__, {"windlass.sites.store": ("find_site", "save_site", "shipped_names", "site_names", "sites_folder")}
    )

__all__ = ["Partition", "Profile", "find_site", "save_site", "shipped_names", "site_names", "sites_folder"]
