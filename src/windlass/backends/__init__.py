"""Where jobs live: one small object per kind of place, found by name and imported when used."""

from __future__ import annotations

from windlass.backends.protocol import Backend, CanSweep, JobState, Observation, Rendered, Submission
from windlass.core.errors import UsageError
from windlass.core.names import nearest

__all__ = ["Backend", "CanSweep", "JobState", "Observation", "Rendered", "Submission", "backend_named"]

_NAMES = ("local",)


def backend_named(name: str) -> Backend:
    """The backend of that name; raises UsageError with the nearest legal one."""
    if name == "local":
        from windlass.backends.local import LocalBackend  # lazy: only the backend in use is imported

        return LocalBackend()
    close = nearest(name, _NAMES) or "local"
    raise UsageError(
        f"no backend `{name}`", hint=f"did you mean `{close}`? Known: {', '.join(_NAMES)}", code="unknown-site"
    )
