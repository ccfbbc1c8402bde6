"""Warm start: initial weights for a run from another model, such as a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from windlass.train.errors import CheckpointError
from windlass.train.hf.mapped import OPTIMIZER_STATE, fill
from windlass.train.hf.sources import open_model

__all__ = ["warm_start"]


@runtime_checkable
class _HasOptimizer(Protocol):
    def optim_shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def optim_tensor(self, name: str) -> Tensor: ...


def warm_start(
    state: Mapping[str, Any], path: str, *, optim: bool | None = None, is_strict: bool = True
) -> tuple[str, int]:
    """Fill a training state in place from any readable model; each process reads only what it needs.

    Args:
        state: `model` and perhaps `optim`, each a flat mapping from names to tensors, as a train module's `state_dict`.
        path: see `windlass.train.hf.sources.open_model`.
        optim: whether to load the optimiser's state; if None, load it if there is one of the same kind.
        is_strict: whether every weight must exist.

    Returns:
        The path of the source, and its number of optimiser steps (0: unknown).

    Raises:
        CheckpointError: it is of a different model, or `optim` is true and there is no optimiser state.
    """
    with open_model(path) as source:
        fill(state["model"], source, source.source, is_strict=is_strict)
        if optim is not False and "optim" in state:
            _take_optimizer(state["optim"], source, source.source, is_needed=optim is True)
        return source.source, int(getattr(source, "step", 0))


def _take_optimizer(targets: Mapping[str, Tensor], source: object, name: str, *, is_needed: bool) -> None:
    found = source.optim_shapes() if isinstance(source, _HasOptimizer) else {}
    if not found and is_needed:
        raise CheckpointError(
            f"{name} has no optimiser state", hint="set `checkpoint.load.optim=null`", code="checkpoint-incomplete"
        )
    if found and isinstance(source, _HasOptimizer) and (is_needed or _fits(targets, found)):
        fill(targets, _OptimizerWeights(source), name, what=OPTIMIZER_STATE)


def _fits(targets: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a stored state belongs to the same kind of optimizer, as a whole or for a pipeline stage."""
    kinds = [{name.rpartition(".")[2] for name in names} for names in (targets, found)]
    return kinds[0] == kinds[1] and all(found.get(name) == tuple(tensor.shape) for name, tensor in targets.items())


class _OptimizerWeights:
    """State of an optimizer, accessed through the interface for weights."""

    def __init__(self, source: _HasOptimizer) -> None:
        self._source = source

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._source.optim_shapes()

    def tensor(self, name: str) -> Tensor:
        return self._source.optim_tensor(name)
