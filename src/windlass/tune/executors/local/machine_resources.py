"""Resources of this machine for trials: the pool, and leases on GPUs that other runs share."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.core.files import write_json
from windlass.core.process import identify
from windlass.supervise.job import Lease
from windlass.supervise.leases import LeasableResources, acquire, local_resources, release
from windlass.tune.executors.local.resource_pool import ResourcePool, ResourceShare
from windlass.tune.executors.protocol import Fit, Room, Work
from windlass.tune.trial import Resources

__all__ = ["GpuLeases", "MachineResources", "visible_gpus"]


_SLOTS_PER_CPU = 8
_IDLE_S = 30.0


class MachineResources:
    """Resources of this machine, and which of them trials hold."""

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
        """Return whether a trial fits, leasing more GPUs if only GPUs are missing."""
        found = self._pool.room(resources)
        while found.fit is Fit.LATER and self._leases is not None and self._pool.lacks_gpus(resources):
            gpu, reason = self._leases.take()
            if not gpu:
                return Room(Fit.LATER, reason)
            self._pool.add_gpu(gpu)
            found = self._pool.room(resources)
        return found

    def give_back_idle(self) -> None:
        """Release GPUs that no trial has used for a while. Cheap, since it is called often."""
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
        """Take over the GPUs used by workers of a previous head."""
        for gpu in self._leases.recover() if self._leases is not None else ():
            self._pool.add_gpu(gpu)

    def guard(self, pid: int) -> None:
        """Hold the GPUs until this process ends, even if the head dies before."""
        if self._leases is not None:
            self._leases.guard(pid)

    def take(self, resources: Resources) -> ResourceShare:
        """Reserve the resources of a trial."""
        return self._pool.take(resources)

    def claim(self, resources: Resources, variables: Mapping[str, str]) -> ResourceShare:
        """Reserve the resources of a trial that was started by a previous head."""
        gpus = variables.get("CUDA_VISIBLE_DEVICES", "")
        return self._pool.claim(resources, [gpu for gpu in gpus.split(",") if gpu])

    def capacity(self) -> dict[str, float]:
        """Return the total amount of each resource."""
        return self._pool.totals

    def give(self, share: ResourceShare) -> None:
        """Release a trial's resources."""
        self._pool.give(share)

    def close(self) -> None:
        """Release all resources."""
        if self._leases is not None:
            self._leases.close()

    def environment(self, share: ResourceShare, resources: Resources) -> dict[str, str]:
        """Return the variables for a worker: its GPUs, and thread counts that match its CPUs unless the user set them."""
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
            f"options.resources.GPU is {number}, but this machine has {len(gpus)}",
            hint="give a whole number, at most the GPUs of this machine",
            code="does-not-fit",
        )
    return gpus[: int(number)]


_ASK_EVERY_S = 0.5


def visible_gpus(present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs that this process may use, those in `CUDA_VISIBLE_DEVICES` if it is set."""
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return present
    return tuple(part.strip() for part in stated.split(",") if part.strip() and part.strip() != "-1")


class GpuLeases:
    """Leases of one sweep on GPUs, one per GPU, in the table that all runs on this machine share.

    Args:
        table: folder of that table.
        folder: folder with one subfolder per lease, which identifies its holders.
        label: label of the sweep, shown to waiting users.
    """

    def __init__(self, table: Path, folder: Path, label: str, present: LeasableResources) -> None:
        self._lease = Lease(folder=str(table), gpus=1)
        self._folder, self._label, self._present = folder, label, present
        self._holder = str(identify(os.getpid()))
        self._held: dict[str, Path] = {}
        self._guard = ""
        self._asked_at = float("-inf")
        self._reason = ""
        self._waiting: Path | None = None

    def recover(self) -> list[str]:
        """Take over a previous head's leases whose workers still run; return their GPUs."""
        found = []
        for place in sorted(self._folder.glob("gpu-*")):
            given, _ = acquire(self._lease, place, self._holder, self._label, self._present)
            if given:
                self._held[given[0]] = place
                found.append(given[0])
        return found

    def take(self) -> tuple[str, str]:
        """Return another GPU, or the reason why there is none.

        Tries at most twice a second, and stays queued until `close`.
        """
        if self._reason and time.monotonic() - self._asked_at < _ASK_EVERY_S:
            return "", self._reason
        self._asked_at = time.monotonic()
        place = self._free_place()
        place.mkdir(parents=True, exist_ok=True)
        self._write_guard(place)
        given, self._reason = acquire(self._lease, place, self._holder, self._label, self._present)
        self._waiting = None if given else place
        if not given:
            return "", self._reason
        self._held[given[0]] = place
        return given[0], ""

    def _free_place(self) -> Path:
        number = 0
        while (place := self._folder / f"gpu-{number}") in self._held.values():
            number += 1
        return place

    def guard(self, pid: int) -> None:
        """Hold the leases until this process ends too; used for the template of a detached sweep."""
        self._guard = str(identify(pid))
        for place in self._held.values():
            self._write_guard(place)

    def _write_guard(self, place: Path) -> None:
        if self._guard:
            write_json(
                place / f"guard-{self._guard.partition(':')[0]}.json", {"template": self._guard}, is_durable=False
            )

    def give(self, gpu: str) -> None:
        """Release one GPU."""
        self._release(self._held.pop(gpu))

    def _release(self, place: Path) -> None:
        release(self._lease, place)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place)

    def close(self) -> None:
        """Release all GPUs, and leave the queue."""
        for gpu in list(self._held):
            self.give(gpu)
        if self._waiting is not None:
            self._release(self._waiting)
