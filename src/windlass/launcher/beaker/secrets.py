"""Secrets of a run at a Beaker site, looked up in the workspace before submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from windlass.core.errors import AccessError, InternalError
from windlass.core.names import nearest
from windlass.plan.plan import Plan

__all__ = ["beaker_secret_names", "delivery_in_job", "names_at_beaker"]


def delivery_in_job(run_id: str) -> Path:
    """Return the path of the in-memory file with secret values in the run's containers."""
    return Path(f"/dev/shm/windlass-{run_id}/secrets.json")  # noqa: S108 - see above


def beaker_secret_names(plan: Plan) -> dict[str, str]:
    """Return the name that each secret of a plan has in the workspace, by variable. Queries Beaker.

    Raises:
        AccessError: a secret is missing.
        UnreachableError: Beaker cannot be reached.
    """
    profile = plan.site.profile
    if profile is None:
        raise InternalError(f"site `{plan.site.name}` has no profile")
    from windlass.backends.beaker.backend import service_of  # lazy: few sites use Beaker

    service, workspace = service_of(profile), profile.beaker.workspace
    return names_at_beaker(plan.secret_names, service.secrets(workspace), service.user(), workspace)


def names_at_beaker(wanted: Mapping[str, str], known: Iterable[str], user: str, workspace: str) -> dict[str, str]:
    """Return the names of the secrets at Beaker by variable, preferring the user's own (`USER_NAME`). Pure.

    Args:
        wanted: names of the secrets by variable.

    Raises:
        AccessError: secrets are missing; the message names all of them.
    """
    there = list(known)
    found, missing = {}, []
    for variable, name in wanted.items():
        own = [candidate for candidate in (f"{user}_{name}", name) if candidate in there]
        if own:
            found[variable] = own[0]
        else:
            missing.append(name)
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing)
        close = nearest(missing[0], there)
        meant = f"did you mean `{close}`? " if close else ""
        hint = f"{meant}upload yours: windlass beaker secret push {missing[0]} --workspace {workspace}"
        message = f"no secret {listed} in the Beaker workspace {workspace}"
        raise AccessError(message, hint=hint, code="beaker-secret-missing")
    return found
