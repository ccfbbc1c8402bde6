"""Secrets of a run at a Beaker site: they are the workspace's own, found by name before anything is submitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from windlass.core.errors import AccessError, InternalError
from windlass.core.names import nearest
from windlass.plan import Plan

__all__ = ["beaker_secret_names", "delivery_in_job", "names_at_beaker"]


def delivery_in_job(run_id: str) -> Path:
    """Where the jobs of a run keep the values, in the memory of their own containers."""
    return Path(f"/dev/shm/windlass-{run_id}/secrets.json")  # noqa: S108 - see above


def beaker_secret_names(plan: Plan) -> dict[str, str]:
    """What each secret of a plan is called in the workspace of its site, by its variable. Asks Beaker.

    Raises:
        AccessError: one is not there; nothing was submitted.
        UnreachableError: Beaker does not answer.
    """
    profile = plan.site.profile
    if profile is None:
        raise InternalError(f"site `{plan.site.name}` has no profile")
    from windlass.backends.beaker.backend import service_of  # lazy: few sites are Beaker's

    service, workspace = service_of(profile), profile.beaker.workspace
    return names_at_beaker(plan.secret_names, service.secrets(workspace), service.user(), workspace)


def names_at_beaker(wanted: Mapping[str, str], known: Iterable[str], user: str, workspace: str) -> dict[str, str]:
    """The name at Beaker by variable: the user's own (`USER_NAME`) before that of everybody; pure.

    Args:
        wanted: name of the secret by variable.

    Raises:
        AccessError: some are not in the workspace; names all of them.
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
        hint = f"{meant}windlass beaker secret push {missing[0]} --workspace {workspace} puts yours there"
        message = f"workspace {workspace} of Beaker has no secret {listed}"
        raise AccessError(message, hint=hint, code="beaker-secret-missing")
    return found
