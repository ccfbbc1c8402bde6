"""AI2's Beaker, accessed through its official client, which is imported on the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.backends.beaker.service": ("BeakerService",),
        },
    )

__all__ = ["BeakerService"]
