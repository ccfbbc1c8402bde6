"""AI2's Beaker, through its official client, which is imported on the first call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.backends.beaker.account import BeakerAccount, read_account, set_default_workspace
    from windlass.backends.beaker.backend import BeakerBackend, service_of
    from windlass.backends.beaker.service import BeakerService
    from windlass.backends.beaker.values import BeakerExperiment, BeakerJob, BeakerLogLine, ExperimentRef
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.backends.beaker.account": ("BeakerAccount", "read_account", "set_default_workspace"),
            "windlass.backends.beaker.backend": ("BeakerBackend", "service_of"),
            "windlass.backends.beaker.values": ("BeakerJob", "BeakerLogLine", "BeakerExperiment", "ExperimentRef"),
            "windlass.backends.beaker.service": ("BeakerService",),
        },
    )

__all__ = [
    "BeakerAccount",
    "BeakerBackend",
    "BeakerExperiment",
    "BeakerJob",
    "BeakerLogLine",
    "BeakerService",
    "ExperimentRef",
    "read_account",
    "service_of",
    "set_default_workspace",
]
