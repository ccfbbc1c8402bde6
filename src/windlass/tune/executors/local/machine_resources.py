"""What trials may take of this machine: the pool, and the GPUs that other runs of windlass hold."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.supervise.leases import LeasableResources, local_resources
from windlass.tune.executors.local.gpus import GpuLeases, visible_gpus
from windlass.tune.executors.local.resource_pool import ResourcePool, ResourceShare
from windlass.tune.executors.protocol import Fit, Room, Work
from windlass.tune.trial import Resources

__all__ = ["MachineResources"]

_SLOTS_PER_CPU = 8
_IDLE_S = 30.0


class MachineResources:
    """Counts what trials hold here."""

    def __init__(self, work: Work) -> None:
        present = local_resources()
        totals: dict[str, float] = {"CPU": present.cpus, "memory": float(present.memory_bytes)}
        stated: dict[str, Any] = dict(work.options.get("resources", {}))
        gpus = visible_gpus(present.gpus)
        if "GPU" in stated:
            gpus = _some_gpus(gpus, stated.pop("GPU"))
        totals.update(stated)
        is_shared = bool(gpus) and "CUDA_VISIBLE_DEVICES" not in os.environ
        self._leases = _leases(work, present, gpus) if is_shared else None
        self._pool = ResourcePool(totals, gpus, are_ours=self._leases is None)
        self._has_gpus = bool(gpus)
        self._idle_since = 0.0
        self.max_slots = max(64, int(present.cpus) * _SLOTS_PER_CPU)

    def room(self, resources: Resources) -> Room:
        """Whether a trial fits; leases further GPUs for it where that is what it lacks."""
        found = self._pool.room(resources)
        while found.fit is Fit.LATER and self._leases is not None and self._pool.lacks_gpus(resources):
            gpu, reason = self._leases.take()
            if not gpu:
                return Room(Fit.LATER, reason)
            self._pool.add_gpu(gpu)
            found = self._pool.room(resources)
        return found

    def give_back_idle(self) -> None:
        """Let other runs have the GPUs that no trial has used for a while; cheap, called often."""
        if self._leases is None or not (idle := self._pool.idle_gpus):
            self._idle_since = 0.0
            return
        now = time.monotonic()
        if not self._idle_since:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_S:
            for gpu in idle:
                self._pool.remove_gpu(gpu)
                self._leases.give(gpu)

    def recover(self) -> None:
        """Hold the GPUs that workers of an earlier head use."""
        for gpu in self._leases.recover() if self._leases is not None else ():
            self._pool.add_gpu(gpu)

    def guard(self, pid: int) -> None:
        """Hold GPUs as long as this process lives, after the head's death too."""
        if self._leases is not None:
            self._leases.guard(pid)

    def take(self, resources: Resources) -> ResourceShare:
        """Hold what a trial needs."""
        return self._pool.take(resources)

    def claim(self, resources: Resources, variables: Mapping[str, str]) -> ResourceShare:
        """Hold what a trial has that another head started."""
        gpus = variables.get("CUDA_VISIBLE_DEVICES", "")
        return self._pool.claim(resources, [gpu for gpu in gpus.split(",") if gpu])

    def capacity(self) -> dict[str, float]:
        """Totals by resource."""
        return self._pool.totals

    def give(self, share: ResourceShare) -> None:
        """Have it back."""
        self._pool.give(share)

    def close(self) -> None:
        """Give everything back."""
        if self._leases is not None:
            self._leases.close()

    def environment(self, share: ResourceShare, resources: Resources) -> dict[str, str]:
        """Variables of a worker: the GPUs it may see, and threads as it has CPUs unless the user said so."""
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(share.gpus)} if self._has_gpus else {}
        if "OMP_NUM_THREADS" not in os.environ:
            own = resources.bundles[0].get("CPU", 1.0) if resources.bundles else 1.0
            variables["OMP_NUM_THREADS"] = str(max(1, int(own)))
        return variables


def _leases(work: Work, present: LeasableResources, gpus: tuple[str, ...]) -> GpuLeases:
    from windlass.runs.home import Home  # lazy: only machines with GPUs need the table of leases

    usable = LeasableResources(gpus, present.cpus, present.memory_bytes)
    return GpuLeases(Home.default().leases, Path(work.folder, "spools"), f"sweep {work.name}", usable)


def _some_gpus(gpus: tuple[str, ...], number: float) -> tuple[str, ...]:
    if number != int(number) or number > len(gpus):
        raise UsageError(
            f"options.resources.GPU is {number}, and this machine has {len(gpus)}",
            hint="state no more whole GPUs than there are",
            code="resources-not-here",
        )
    return gpus[: int(number)]
