"""Norms of the gradient and weight of each parameter, and how far loss and gradient norm deviate from recent steps.

Legend: N parameters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.optim.clip import finish_gradients, tensor_norms
from windlass.train.optim.groups import plain_parameters

__all__ = ["Gradients"]

STRAYS = {"train/loss": "gradients/loss_stray", "optim/grad_norm": "gradients/norm_stray"}
"""Score of each metric: standard deviations above the mean of the previous steps."""


class Gradients(TrainerCallback):
    """Callback that records `gradients/NAME` and `weights/NAME` every `every` steps, before clipping.

    Deviation scores are recorded at every step.

    Args:
        every: steps between norms.
        match: globs of parameter names.
        window: number of past steps that deviation scores use.
    """

    priority = 100

    def __init__(self, *, every: int = 100, match: Sequence[str] = ("*",), window: int = 128) -> None:
        self.every, self.match = every, tuple(match)
        self._past: dict[str, deque[float]] = {name: deque(maxlen=window) for name in STRAYS}
        self._watched: list[tuple[str, Tensor]] = []

    def on_attach(self) -> None:
        """Find the parameters. Collective. Raises SpecError if no pipeline stage has one that matches."""
        named = list(plain_parameters(self.trainer.module.model))
        self._watched = [(name, each) for name, each in named if any(fnmatchcase(name, glob) for glob in self.match)]
        if not self.trainer.world.sum_on_host([len(self._watched)])[0]:
            message = f"`match` {list(self.match)} of the callback `gradients` matches no parameter"
            hint = f"parameters are named like {', '.join(name for name, _ in named[:3])}"
            raise SpecError([Problem(message, "unmatched-glob", None, hint)])

    def on_optim(self) -> None:
        """Record the norms if they are due, without a host sync. Collective if parameters are sharded."""
        if (self.trainer.step + 1) % self.every:
            return
        finish_gradients(each for _, each in self._watched)
        with torch.no_grad():
            moved = [(name, each) for name, each in self._watched if each.grad is not None]
            self._record("gradients", [name for name, _ in moved], [each.grad for _, each in moved])
            self._record("weights", [name for name, _ in self._watched], [each.detach() for _, each in self._watched])

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the deviation scores, so that later callbacks see them."""
        for name, score in STRAYS.items():
            value = metrics.get(name, math.nan)
            if isinstance(metrics, dict) and math.isfinite(value):
                stray = _stray(value, self._past[name])
                if stray is not None:
                    metrics[score] = stray
                self._past[name].append(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the history from which scores are computed; only rank 0 has it."""
        return {"past": {name: list(values) for name, values in self._past.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history."""
        for name, values in state.get("past", {}).items():
            if name in self._past:
                self._past[name].clear()
                self._past[name].extend(float(value) for value in values)

    def _record(self, kind: str, names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
        norms_N = tensor_norms([tensor for tensor in tensors if tensor is not None])
        for name, norm in zip(names, norms_N, strict=True):
            self.trainer.record(f"{kind}/{name}", norm, "none")


def _stray(value: float, past: Sequence[float]) -> float | None:
    """Return by how many standard deviations a value exceeds the mean.

    Returns None if there are fewer than ten past values, or all are equal.
    """
    if len(past) < 10:
        return None
    mean = math.fsum(past) / len(past)
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in past) / (len(past) - 1))
    return (value - mean) / spread if spread > 0.0 else None
