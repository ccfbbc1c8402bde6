"""Metrics of steps, kept on the device until they are collected, then reduced over all processes at once.

Legend: N values, P processes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.train.errors import TrainingError
from windlass.train.parallel.world import World

__all__ = ["DIGEST_RANGE", "MetricStore", "Reduce", "StepMetrics", "refuse_bad_loss"]

Reduce: TypeAlias = Literal["mean", "sum", "max", "min", "none"]

DIGEST_RANGE = 1 << 20
"""Upper bound of digests: sums of their squares over thousands of processes are exact in float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Metrics of one step after reduction."""

    step: int
    values: Mapping[str, float]


@dataclass(slots=True)
class MetricStore:
    """Store for metrics of steps that have not been collected yet.

    Reductions: `mean`, `max` and `min` over all processes; `sum` over data-parallel ones (processes that share
    rows hold equal values or partial sums, and count once); `none` uses rank 0's value.
    """

    world: World
    _keys: list[tuple[int, str, Reduce]] = field(default_factory=list)
    _values: list[float | Tensor] = field(default_factory=list)
    _digest: int = 0

    def record(self, step: int, name: str, value: float | Tensor, reduce: Reduce = "mean") -> None:
        """Record a value for a step.

        A tensor stays on its device, without a sync. A later value under the same name replaces an earlier one.
        """
        self._keys.append((step, name, reduce))
        self._values.append(value.detach() if isinstance(value, Tensor) else value)
        if self.world.size > 1:
            self._digest = zlib.crc32(f"{step} {name} {reduce}".encode(), self._digest)

    @property
    def digest(self) -> int:
        """Return a digest of the recorded names, which is equal on processes with equal names."""
        return self._digest % DIGEST_RANGE

    def __len__(self) -> int:
        return len(self._keys)

    def collect(self, *, is_uniform: bool = True) -> list[StepMetrics]:
        """Return the metrics of each step since the last call, in order. Collective; waits for the device.

        Args:
            is_uniform: whether all processes recorded the same names; if not, names are exchanged first.
        """
        keys, values_N, present_N = self._keys, self._stacked(), None
        if not is_uniform:
            keys, values_N, present_N = self._united(values_N)
        self._keys, self._values, self._digest = [], [], 0
        if not keys:
            return []
        numbers = values_N.tolist()
        if self.world.size > 1:
            numbers = self._reduced(keys, values_N, present_N)
        steps: dict[int, dict[str, float]] = {}
        for (step, name, _), number in zip(keys, numbers, strict=True):
            steps.setdefault(step, {})[name] = number
        return [StepMetrics(step=step, values=values) for step, values in sorted(steps.items())]

    def _stacked(self) -> Tensor:
        """Stack all values in one vector, on the device if any value is there; host values need one copy."""
        device = self.world.device
        vector_N = torch.tensor([0.0 if isinstance(v, Tensor) else float(v) for v in self._values], dtype=torch.float64)
        places = [place for place, value in enumerate(self._values) if isinstance(value, Tensor)]
        if not places:
            return vector_N.to(device) if self.world.size > 1 else vector_N
        tensors = [value for value in self._values if isinstance(value, Tensor)]
        scalars = torch.stack([tensor.to(device=device, dtype=torch.float64).reshape(()) for tensor in tensors])
        vector_N = vector_N.to(device)
        vector_N[torch.tensor(places, device=device)] = scalars
        return vector_N

    def _united(self, values_N: Tensor) -> tuple[list[tuple[int, str, Reduce]], Tensor, Tensor]:
        """Return the names from all processes, the values in that order, and which of them this process has."""
        everyone: list[list[tuple[int, str, Reduce]]] = [[] for _ in range(self.world.size)]
        dist.all_gather_object(everyone, self._keys)
        union = sorted({key for keys in everyone for key in keys})
        place_of = {key: place for place, key in enumerate(union)}
        values = torch.zeros(len(union), dtype=torch.float64, device=values_N.device)
        present = torch.zeros_like(values)
        for key, value in zip(self._keys, values_N, strict=False):
            values[place_of[key]], present[place_of[key]] = value, 1.0
        return union, values, present

    def _reduced(
        self, keys: Sequence[tuple[int, str, Reduce]], values_N: Tensor, present_N: Tensor | None
    ) -> list[float]:
        """Gather the values once and reduce them in float64, with the same arithmetic on every process."""
        mine_N = values_N if present_N is None else torch.cat((values_N, present_N))
        gathered = [torch.empty_like(mine_N) for _ in range(self.world.size)]
        dist.all_gather(gathered, mine_N)
        all_PN = torch.stack(gathered)
        values = all_PN[:, : len(keys)].tolist()
        here = None if present_N is None else (all_PN[:, len(keys) :] > 0).tolist()
        replicas = self.world.size // self.world.share.world
        numbers = []
        for place, (_, _, reduce) in enumerate(keys):
            column = [row[place] for rank, row in enumerate(values) if here is None or here[rank][place]]
            numbers.append(_reduce(column, reduce, replicas))
        return numbers


def _reduce(column: Sequence[float], reduce: Reduce, replicas: int) -> float:
    if reduce == "none":
        return column[0]
    if reduce in ("sum", "mean"):
        return math.fsum(column) / (replicas if reduce == "sum" else len(column))
    if any(math.isnan(value) for value in column):
        return math.nan
    return max(column) if reduce == "max" else min(column)


def refuse_bad_loss(steps: Sequence[StepMetrics], name: str = "train/loss") -> None:
    """Raise TrainingError for the first step whose loss is not finite.

    Raises:
        TrainingError: the loss of a step is nan or infinite.
    """
    for entry in steps:
        loss = entry.values.get(name, 0.0)
        if not math.isfinite(loss):
            raise TrainingError(
                f"loss is {loss} at step {entry.step}",
                hint="lower `optim.lr`, set `optim.skip`, or set `stop_on_nan=false` to continue without saving",
                code="loss-not-finite",
            )
