"""Lookup of the image's id for a Beaker site's jobs, since an image's name may be reassigned during a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from windlass.core.errors import InternalError, UnreachableError
from windlass.plan.plan import Plan

__all__ = ["image_by_id"]

_OURS = "beaker:"


def image_by_id(plan: Plan, reference: str, log: Callable[[str], None]) -> tuple[str, dict[str, object]]:
    """Return a reference to the image for a plan's jobs, by id, and facts about the image for the provenance.

    Queries Beaker, for Beaker images only. If Beaker cannot be reached, the name is kept and a line is logged.

    Args:
        reference: image of the experiment; the site's default if empty.

    Raises:
        NotFoundError: Beaker has no such image.
        AccessError: Beaker rejects the token.
    """
    name = reference or plan.tasks[0].beaker.image
    if not name.startswith(_OURS):
        return reference, {}
    from windlass.backends.beaker.backend import service_of  # lazy: few sites use Beaker

    profile = plan.site.profile
    if profile is None:
        raise InternalError(f"site `{plan.site.name}` has no profile")
    try:
        seen = service_of(profile).image(name.removeprefix(_OURS))
    except UnreachableError as error:
        log(f"image {name} is used by name: {error.message}")
        return reference, {}
    known = asdict(seen)
    return _OURS + seen.id, {"image": {key: known[key] for key in ("id", "name", "docker_id", "description")}}
