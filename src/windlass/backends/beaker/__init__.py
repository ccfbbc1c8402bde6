"""AI2's Beaker, through its official client, which is imported at the first question and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.backends.beaker.account import BeakerAccount, read_account, set_default_workspace
    from windlass.backends.beaker.backend import BeakerBackend, service_of
    from windlass.backends.beaker.seen import JobSeen, LogLine, Seen, Workload
    from windlass.backends.beaker.service import BeakerService
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.backends.beaker.account": ("BeakerAccount", "read_account", "set_default_workspace"),
            "windlass.backends.beaker.backend": ("BeakerBackend", "service_of"),
            "windlass.backends.beaker.seen": ("JobSeen", "LogLine", "Seen", "Workload"),
            "windlass.backends.beaker.service": ("BeakerService",),
        },
    )

__all__ = [
    "BeakerAccount",
    "BeakerBackend",
    "BeakerService",
    "JobSeen",
    "LogLine",
    "Seen",
    "Workload",
    "read_account",
    "service_of",
    "set_default_workspace",
]
