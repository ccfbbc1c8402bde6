"""Scriptable fake of Beaker: the official client connects to it, and replicas run as local processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.testing.beaker.fake import FakeBeaker
    from windlass.testing.beaker.records import Status
    from windlass.testing.beaker.scenario import Scenario
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.testing.beaker.fake": ("FakeBeaker",),
            "windlass.testing.beaker.records": ("Status",),
            "windlass.testing.beaker.scenario": ("Scenario",),
        },
    )

__all__ = ["FakeBeaker", "Scenario", "Status"]
