"""Result of placing an experiment at a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass
from windlass.plan.shape import TaskShape
from windlass.spec import Experiment
from windlass.supervise.job import BeakerRequest, ChainConfig, QueueRequest

if TYPE_CHECKING:
    from windlass.plan.slurm.queue_target import QueueTarget

__all__ = ["PlacedTask", "Placement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTask:
    """Task in the shape that it has at its site.

    Attributes:
        time_s: running time, all attempts together; None for no limit.
        bundles: its bundles and whether they fit, as lines of text.
    """

    shape: TaskShape
    time_s: float | None = None
    queue: QueueRequest = QueueRequest()
    chain: ChainConfig = ChainConfig()
    bundles: tuple[str, ...] = ()
    beaker: BeakerRequest = BeakerRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Experiment as it runs at one site.

    Attributes:
        experiment: reshaped where that was asked for.
        target: partition and queue at a Slurm site, clusters at a Beaker site; None elsewhere.
    """

    experiment: Experiment
    tasks: Mapping[str, PlacedTask]
    target: QueueTarget | None = None
    notes: tuple[str, ...] = field(default=())
