"""Processes in this job: ranks, groups, device, and small collectives on the host."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeVar

from windlass.core.errors import PreconditionError
from windlass.train.data.protocol import Share

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["World", "device_of", "place_of"]

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class World:
    """All processes and this process's place among them; created once by `World.begin`, closed by `end`.

    Attributes:
        mesh: axes in this order, without those of size 1: pp, dp_replicate, dp_shard, cp, tp. None with
            one process.
        expert_mesh: with split experts, the same processes as pp, ep_replicate, ep.
        share: this process's part of each batch: its position among data-parallel processes (dp_replicate x dp_shard).
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    device: torch.device
    mesh: DeviceMesh | None = None
    expert_mesh: DeviceMesh | None = None
    share: Share = field(default_factory=Share)
    _is_owner: bool = False

    @classmethod
    def begin(cls, device: Literal["auto", "cpu", "cuda"] = "auto", *, timeout_s: float = 1800.0) -> World:
        """Join torchrun's process group, or form a world of one process without its variables.

        Blocks until all processes have joined.
        """
        import torch
        import torch.distributed as dist

        rank, size, local_rank = place_of()
        place = device_of(device, local_rank)
        if place.type == "cuda":
            torch.cuda.set_device(place)
        is_owner = size > 1 and not dist.is_initialized()
        if is_owner:
            missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
            if missing:
                raise _wrong_place(f"WORLD_SIZE is {size}, but {missing[0]} is not set")
            backend = "gloo" if place.type == "cpu" else "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        return cls(
            rank=rank,
            size=size,
            local_rank=local_rank,
            device=place,
            share=Share(rank=rank, world=size),
            _is_owner=is_owner,
        )

    @property
    def is_main(self) -> bool:
        """Return whether this process is rank 0, which logs and decides."""
        return self.rank == 0

    def sum_on_host(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all processes, in float64 on the host. Collective, blocking, no device sync."""
        if self.size == 1:
            return [float(value) for value in values]
        import torch
        import torch.distributed as dist

        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def from_main(self, value: T) -> T:
        """Return rank 0's value, which is pickled. Collective, blocking."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        found = [value]
        dist.broadcast_object_list(found, src=0, device=torch.device("cpu"))
        return found[0]

    def from_all(self, value: T) -> list[T]:
        """Return the values of all processes by rank; they are pickled. Collective, blocking."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[T] = [value] * self.size
        dist.all_gather_object(found, value)
        return found

    def barrier(self) -> None:
        """Wait for all processes. Collective."""
        self.sum_on_host([0.0])

    def end(self) -> None:
        """Leave the process group if `begin` created it. Idempotent."""
        if self._is_owner:
            import torch.distributed as dist

            dist.destroy_process_group()
            self._is_owner = False

    def abandon(self) -> None:
        """Leave the process group after an error, without waiting for other processes. Idempotent."""
        if self._is_owner:
            self._is_owner = False
            import torch.distributed as dist
            from torch.distributed.distributed_c10d import _abort_process_group

            if not dist.is_initialized():
                return
            if self.device.type == "cuda":
                _abort_process_group()  # NCCL's shutdown waits for work that peers will never join
            else:
                dist.destroy_process_group()


def place_of(environ: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """Return rank, world size and local rank from torchrun's environment variables, or 0, 1, 0 if not set.

    Raises:
        PreconditionError: they are not numbers, or inconsistent.
    """
    found = []
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = environ.get(name, default)
        if not text.isdecimal():
            raise _wrong_place(f"{name} is `{text}`")
        found.append(int(text))
    rank, size, local_rank = found
    if rank >= size:
        raise _wrong_place(f"RANK is {rank} and WORLD_SIZE {size}")
    return rank, size, local_rank


def _wrong_place(problem: str) -> PreconditionError:
    return PreconditionError(
        f"invalid distributed environment: {problem}",
        hint="start with torchrun, which sets these variables, or unset RANK, WORLD_SIZE and LOCAL_RANK for a single process",
        code="bad-process-environment",
    )


def device_of(name: str, local_rank: int = 0) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`; raise PreconditionError if there is no GPU for this local rank."""
    import torch

    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise PreconditionError(
            f"process {local_rank} of this machine has no GPU: torch sees {num_gpus}",
            hint="set `device=auto`, or start one process per GPU",
            code="no-gpu",
        )
    return torch.device("cuda", local_rank)
