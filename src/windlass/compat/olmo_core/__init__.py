"""Replacement for `olmo_core.launch.beaker`: change the import, and windlass launches instead."""

from __future__ import annotations

from windlass.compat.olmo_core.git_state import GitRepoState
from windlass.compat.olmo_core.images import OLMoCoreBeakerImage
from windlass.compat.olmo_core.jobs import (
    BeakerPriority,
    get_beaker_client,
    get_beaker_experiment_id,
    is_running_in_beaker,
    is_running_in_beaker_batch_job,
)
from windlass.compat.olmo_core.launch_config import (
    BeakerEnvSecret,
    BeakerEnvVar,
    BeakerLaunchConfig,
    BeakerWekaBucket,
)

__all__ = [
    "BeakerEnvSecret",
    "BeakerEnvVar",
    "BeakerLaunchConfig",
    "BeakerPriority",
    "BeakerWekaBucket",
    "GitRepoState",
    "OLMoCoreBeakerImage",
    "get_beaker_client",
    "get_beaker_experiment_id",
    "is_running_in_beaker",
    "is_running_in_beaker_batch_job",
]
