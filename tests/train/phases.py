"""Worlds of several sizes one after another, for the price of one import of torch.

Each rank of `run_distributed_test` leaves its group and forks a child for each phase; the children of a phase form a
world of their own.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # the first step of an optimiser imports it, and each child would pay for that
import torch.distributed as dist

from windlass.testing.distributed import _die_with_parent
from windlass.train.data.protocol import Share
from windlass.train.parallel.world import World

__all__ = ["run_phase"]

_PATIENCE = timedelta(seconds=120)


def run_phase(world: World, store: Path, size: int, work: Callable[[World], None]) -> int:
    """Do `work` in a child of each of the first `size` ranks; returns the child's exit code, negative for a signal."""
    if dist.is_initialized():
        world.barrier()  # whoever leaves early breaks the connections that others still make
        dist.destroy_process_group()
    if world.rank >= size:
        return 0
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _die_with_parent()
            work(_join(world.rank, size, store))
            code = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as its parent
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _join(rank: int, size: int, store: Path) -> World:
    if size > 1:
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), size), rank=rank, world_size=size, timeout=_PATIENCE
        )
    share = Share(rank=rank, world=size)
    return World(rank=rank, size=size, local_rank=rank, device=torch.device("cpu"), share=share)
