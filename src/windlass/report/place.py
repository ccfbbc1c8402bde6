"""Place of this process in a run: its run, task, attempt, rank and folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass

__all__ = ["Place", "is_inside", "read_place"]


@dataclass(frozen=True)
class Place:
    """Place of a process in a run; outside windlass, the only process in an unnamed run.

    Attributes:
        rank: number of the replica (one per node).
        local_rank: number of this process on its node.
        global_rank: number of this process among all `world_size` of the gang.
        address: address of the gang's leader; `port` is its port.
        out: folder of the task's output.
        checkpoints: folder for checkpoints; the same for all attempts, retries and resumes.
        deadline: wall time at which this job will be ended; None if there is no limit.
    """

    run: str = ""
    task: str = ""
    attempt: int = 0
    rank: int = 0
    num_replicas: int = 1
    local_rank: int = 0
    global_rank: int = 0
    world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 29500
    out: Path = Path("out")
    checkpoints: Path = Path("checkpoints")
    deadline: float | None = None


def is_inside(environ: Mapping[str, str]) -> bool:
    """Return whether these environment variables are those of a process in a windlass job."""
    return bool(environ.get("WINDLASS_RUN") and environ.get("WINDLASS_TASK") and environ.get("WINDLASS_JOURNAL"))


def read_place(environ: Mapping[str, str] = os.environ, deadline: float | None = None) -> Place:
    """Return the place that the environment describes."""
    rank = _number(environ, "WINDLASS_RANK", 0)
    num_replicas = _number(environ, "WINDLASS_NUM_REPLICAS", 1)
    return Place(
        run=environ.get("WINDLASS_RUN", ""),
        task=environ.get("WINDLASS_TASK", ""),
        attempt=_number(environ, "WINDLASS_ATTEMPT", 0),
        rank=rank,
        num_replicas=num_replicas,
        local_rank=_number(environ, "LOCAL_RANK", 0),
        global_rank=_number(environ, "RANK", rank),
        world_size=_number(environ, "WORLD_SIZE", num_replicas),
        address=environ.get("WINDLASS_LEADER_ADDRESS") or environ.get("MASTER_ADDR") or "127.0.0.1",
        port=_number(environ, "WINDLASS_LEADER_PORT", _number(environ, "MASTER_PORT", 29500)),
        out=Path(environ.get("WINDLASS_OUT") or "out"),
        checkpoints=Path(environ.get("WINDLASS_CHECKPOINTS") or "checkpoints"),
        deadline=deadline,
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name, ""))
    except ValueError:
        return default
