"""Result of placing an experiment at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass
from windlass.spec import Experiment
from windlass.supervise.job import BeakerRequest, ChainConfig, QueueRequest, TaskShape

if TYPE_CHECKING:
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["PlacedTask", "Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTask:
    """Task as placed at one site, with its shape and request.

    Attributes:
        time_s: total running time of all attempts; None for no limit.
        bundles: lines that describe the bundles and how they fit.
    """

    shape: TaskShape
    time_s: float | None = None
    queue: QueueRequest = QueueRequest()
    chain: ChainConfig = ChainConfig()
    bundles: tuple[str, ...] = ()
    beaker: BeakerRequest = BeakerRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Experiment as placed at one site.

    Attributes:
        experiment: the experiment, reshaped if requested.
        target: partition and queue at a Slurm site, or clusters at a Beaker site; None elsewhere.
    """

    experiment: Experiment
    tasks: Mapping[str, PlacedTask]
    target: QueueTarget | None = None
    notes: tuple[str, ...] = field(default=())
