"""Weights that are read on demand, from foreign files or a model in memory, and copied into a model.

Legend: all tensors here are whole weights, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from windlass.train.errors import CheckpointError
from windlass.train.hf.maps import NameMap, Weight
from windlass.train.model.config import ModelConfig

__all__ = ["OPTIMIZER_STATE", "MappedWeights", "ModelSource", "ModuleWeights", "Weights", "check_weights", "fill"]


_WEIGHTS = "the weights in {source} are of a different model"
OPTIMIZER_STATE = "the optimiser's state in {source} is of a different optimiser"
"""Messages of `fill` for tensors that do not match."""


class Weights(Protocol):
    """Named tensors that are read on demand."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each tensor, without reading it."""

    def tensor(self, name: str) -> Tensor:
        """Read a tensor onto the CPU, which takes as much memory as the tensor."""


class ModelSource(Weights, Protocol):
    """Stored model under windlass's names; use it in a `with` block.

    Attributes:
        source: path of the model, for messages.
    """

    source: str

    @property
    def config(self) -> ModelConfig:
        """Architecture of the model."""

    def __enter__(self) -> Self:
        """Return self."""

    def __exit__(self, *failure: object) -> None:
        """Close the source's files."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and tensor of every weight, one at a time."""


class MappedWeights:
    """Foreign weights under windlass's names.

    Attributes:
        config: settings of the model.
        source: path of the weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        names: NameMap,
        weights: Weights,
        source: str,
        close: Callable[[], None] | None = None,
    ) -> None:
        """Compare names and shapes. Raises CheckpointError for missing or unexpected weights and wrong shapes."""
        self.config, self.source = config, source
        self._files, self._close = weights, close
        self._weights = {weight.ours: weight for weight in names.weights(config)}
        self._check()

    def _check(self) -> None:
        found = self._files.shapes()
        head = next((weight for weight in self._weights.values() if weight.ours == "head.weight"), None)
        spare = {name for name in found if name.endswith("rotary_emb.inv_freq")}  # old files contain computed values
        if head is None:
            spare |= {"lm_head.weight", "lm_head.w_out.weight"}  # some tied models' files contain the embedding twice
        check_weights(found, list(self._weights.values()), self.source, spare=spare)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._close is not None:
            self._close()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.tensor(name)) for name in self._weights)

    def names(self) -> Mapping[str, Weight]:
        """Return each weight by its name in windlass."""
        return self._weights

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each weight by its name in windlass."""
        return {name: weight.shape for name, weight in self._weights.items()}

    def tensor(self, name: str) -> Tensor:
        """Read a tensor in its stored type, stacking it if it is stored as several tensors."""
        weight = self._weights[name]
        if not weight.is_stacked:
            return self._files.tensor(weight.theirs[0])
        first = self._files.tensor(weight.theirs[0])
        whole = torch.empty(weight.shape, dtype=first.dtype)
        for index, theirs in enumerate(weight.theirs):
            whole[index] = self._files.tensor(theirs)
        return whole


class ModuleWeights:
    """Weights of a model in memory.

    All processes together gather those that are sharded, one by one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = dict(model.named_parameters())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of each whole tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""
        from torch.distributed.tensor import DTensor

        tensor = self._tensors[name].detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(
    targets: Mapping[str, Tensor], weights: Weights, source: str, *, is_strict: bool = True, what: str = _WEIGHTS
) -> None:
    """Copy weights into plain or sharded tensors with the same names, converting types.

    Each process reads whole weights, one at a time, and keeps its shard, without communication. Targets that are a
    pipeline stage may lack the other stages' weights.

    Args:
        is_strict: whether every target must have a weight and every weight a target; shapes must always match.
        what: description for messages.

    Raises:
        CheckpointError: a target has no weight, a weight has no target, or shapes differ.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    shapes = weights.shapes()
    wanted = [Weight(ours=name, theirs=(name,), shape=tuple(tensor.shape)) for name, tensor in targets.items()]
    if is_strict:
        check_weights(shapes, wanted, source, spare=set(shapes) if _is_stage(targets.keys()) else None, what=what)
    else:
        wanted = [weight for weight in wanted if weight.ours in shapes]
        check_weights(shapes, wanted, source, spare=set(shapes) - targets.keys(), what=what)
    with torch.no_grad():
        for weight in wanted:
            target = targets[weight.ours]
            whole = weights.tensor(weight.ours).to(device=target.device, dtype=target.dtype)
            if isinstance(target, DTensor):
                whole = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
            target.copy_(whole)


def _is_stage(names: Collection[str]) -> bool:
    """Return whether the names are only part of a decoder: the embedding, final norm or some blocks are missing."""
    blocks = {int(name.split(".")[1]) for name in names if name.startswith("blocks.")}
    has_ends = "embed.weight" in names and "norm.weight" in names
    return bool(blocks) and not (has_ends and len(blocks) == max(blocks) + 1)


def check_weights(
    found: Mapping[str, tuple[int, ...]],
    wanted: Sequence[Weight],
    source: str,
    *,
    spare: set[str] | None = None,
    what: str = _WEIGHTS,
) -> None:
    """Compare the stored names and shapes with those that a model expects.

    Args:
        spare: stored names that the model may lack.
        what: description for messages.

    Raises:
        CheckpointError: lists missing and unexpected weights, and wrong shapes.
    """
    shapes = {theirs: weight.their_shape for weight in wanted for theirs in weight.theirs}
    lines = [f"{name} is missing" for name in shapes if name not in found]
    lines += [f"the model has no {name}" for name in found if name not in shapes and name not in (spare or ())]
    lines += [
        f"{name} has shape {list(found[name])}, not {list(shape)}"
        for name, shape in shapes.items()
        if found.get(name, shape) != shape
    ]
    if lines:
        more = f", and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(
            f"{what.format(source=source)}: {'; '.join(lines[:5])}{more}",
            hint="compare the config.json there with this recipe's `optim`, or set `checkpoint.load.optim=false`"
            if what == OPTIMIZER_STATE
            else "compare the config.json there with the model's settings",
            code="checkpoint-mismatch",
        )
