"""Registry of backends: each is found by name and imported when it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

from windlass.backends.protocol import Backend
from windlass.core.errors import UsageError
from windlass.core.names import nearest
from windlass.plan.site import Site

__all__ = ["backend_for"]

_NAMES = ("local", "docker", "slurm", "beaker")


def backend_for(
    site: Site, *, push: Callable[[Path, PurePath], None] | None = None, patience_s: float | None = None
) -> Backend:
    """Return the backend for a site; for an unknown name, raise UsageError with the nearest valid one.

    Args:
        push: called with a job's folder here and its folder at the site, copies everything the job needs before it is
            queued; None if both are the same folder.
        patience_s: timeout of queries about jobs; None for the backend's own default.
    """
    name = site.backend
    if name == "local":
        from windlass.backends.local.backend import LocalBackend  # lazy: only the backend in use is imported

        return LocalBackend()
    if name == "docker":
        from windlass.backends.docker.backend import DockerBackend  # lazy: as above

        return DockerBackend(site.name)
    profile = site.profile
    if name == "slurm" and profile is not None:
        from windlass.backends.slurm.backend import SlurmBackend  # lazy: as above

        return SlurmBackend(profile, push=push, patience_s=patience_s)
    if name == "beaker" and profile is not None:
        from windlass.backends.beaker.backend import BeakerBackend  # lazy: as above

        return BeakerBackend(profile, push=push)
    close = nearest(name, _NAMES) or "local"
    raise UsageError(
        f"no backend `{name}`", hint=f"did you mean `{close}`? Known: {', '.join(_NAMES)}", code="unknown-site"
    )
