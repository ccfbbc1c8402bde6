"""Facts about the current Beaker job, and a client for everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beaker import Beaker

__all__ = [
    "BeakerPriority",
    "get_beaker_client",
    "get_beaker_experiment_id",
    "is_running_in_beaker",
    "is_running_in_beaker_batch_job",
]

_CLIENT_S = 3600.0


class BeakerPriority(StrEnum):
    """Priorities that Beaker knows, which earlier versions of OLMo-core exported."""

    low = "low"
    normal = "normal"
    high = "high"
    urgent = "urgent"
    immediate = "immediate"


def is_running_in_beaker() -> bool:
    """Return True in a Beaker job, or in a windlass job with `compat: beaker`."""
    return "BEAKER_JOB_ID" in os.environ and "BEAKER_NODE_ID" in os.environ


def is_running_in_beaker_batch_job() -> bool:
    """Return True in a batch job, which has no interactive user."""
    return is_running_in_beaker() and os.environ.get("BEAKER_JOB_KIND") == "batch"


def get_beaker_experiment_id() -> str | None:
    """Return the id of the experiment that this job belongs to, or None outside a job."""
    return os.environ.get("BEAKER_EXPERIMENT_ID") if is_running_in_beaker_batch_job() else None


@contextmanager
def get_beaker_client(workspace: str | None = None, check_for_upgrades: bool | None = None) -> Iterator[Beaker]:
    """Yield the official client with windlass's time limits, valid for an hour.

    Args:
        check_for_upgrades: accepted without effect.
    """
    from windlass.backends.beaker.service import BeakerService  # lazy: the client costs half a second

    del check_for_upgrades
    service = BeakerService()
    try:
        with service.asking("running the script's request", _CLIENT_S) as client:
            client.config.default_workspace = workspace or client.config.default_workspace
            yield client
    finally:
        service.close()
