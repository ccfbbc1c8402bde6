"""Whether a run lives elsewhere: every launch asks, and only one that does pays for what a mirror needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.plan import Plan
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launch.remote.mirror import Mirror

__all__ = ["mirror_if_remote"]


def mirror_if_remote(run: RunFolder, plan: Plan, home: Home) -> Mirror | None:
    """As `mirror.mirror_of`, without its imports where the site is this machine's."""
    profile = plan.site.profile
    if profile is None or not (profile.ssh or profile.kind == "beaker"):
        return None
    from windlass.launch.remote.mirror import (
        mirror_of,  # lazy: with the way to a site, 20 ms of a launch on this machine
    )

    return mirror_of(run, plan, home)
