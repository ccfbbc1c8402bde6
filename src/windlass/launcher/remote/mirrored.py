"""Mirror of a run, imported only for runs at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.plan.plan import Plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.remote.mirror import Mirror

__all__ = ["mirror_if_remote"]


def mirror_if_remote(run: RunFolder, plan: Plan, home: Home) -> Mirror | None:
    """Return `mirror.mirror_of`; imports nothing if the site is on this machine."""
    profile = plan.site.profile
    if profile is None or not (profile.ssh or profile.kind == "beaker"):
        return None
    from windlass.launcher.remote.mirror import (
        mirror_of,  # lazy: saves 20 ms of a launch on this machine
    )

    return mirror_of(run, plan, home)
