"""What a plan would say of a job on the lab's Slurm, for jobs that a test makes by hand."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from windlass.sites.profile import Partition, Profile, SiteScheduler
from windlass.supervise.job import ChainConfig, Fencing, JobDocument, QueueRequest, SiteSettings

__all__ = ["dressed", "lab_profile"]

_MIB = 1 << 20


def lab_profile(*, has_accounting: bool = False, **changes: Any) -> Profile:
    """The lab's site; `changes` are fields of its scheduler."""
    facts: dict[str, Any] = {
        "version": "22.05.8",
        "partition": "main",
        "accounting": has_accounting,
        "kill_wait": 5.0,
        **changes,
    }
    partition = Partition(num_nodes=4, gpus=4, cpus=8, memory=8000 * _MIB)
    return Profile(name="lab", scheduler=SiteScheduler(**facts), partitions={"main": partition})


def dressed(document: JobDocument, *, num_links: int = 3, **changes: Any) -> JobDocument:
    """The job with a queue, a chain and fencing; `changes` are fields of its queue."""
    facts: dict[str, Any] = {
        "name": f"{document.run}.{document.task}.{document.job}.{document.token[:8]}",
        "partition": "main",
        "time_s": 600.0,
        "num_queued": 2,
        "cpus_per_node": 1,
        "memory_bytes": 300 * _MIB,
        "signal_before_s": 60.0,
        "python": sys.executable,
        **changes,
    }
    return dataclasses.replace(
        document,
        queue=QueueRequest(**facts),
        chain=ChainConfig(scheduler="slurm", mode="successor", num_links=num_links),
        site=SiteSettings(host_address="", fencing=Fencing(renew_s=0.5, stop_s=4.0, kill_s=20.0, quiet_s=5.0)),
    )
