"""Dry run of a parallel plan with a model without weights and many fake processes.

torch's fake backend completes every collective immediately without data, so one process can act as rank 0 of 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from windlass.core.errors import Problem, SpecError
from windlass.train.model.adapters import add_adapter
from windlass.train.model.config import LoRAConfig, ModelConfig
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.mesh import check_model, mesh_shape
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from windlass.train.parallel.config import ParallelConfig
    from windlass.train.recipe import Recipe

__all__ = ["dry_apply", "dry_apply_recipe", "fake_world"]

_CHEAP_PARAMETERS = 20_000_000


def dry_apply(
    model: ModelConfig, parallel: ParallelConfig, world_size: int, adapter: LoRAConfig | None = None
) -> Mapping[str, object]:
    """Return what rank 0 of `world_size` processes would hold. Takes seconds and little memory.

    A model of at most 20M parameters also runs forward and backward over one short row, which checks its shapes.

    Returns:
        `mesh`: sizes of its axes; `data`; `parameters` of the model, `parameters_of_process` and `bytes_of_process`
        (float32, with neither gradients nor optimiser); `ran_backward`.

    Raises:
        SpecError: the plan or the model does not divide, or a process group already exists.
    """
    problems = check_model(parallel, model)
    if problems:
        raise SpecError(problems)
    with torch.device("meta"):
        whole = Decoder(model)
    if adapter is not None:
        add_adapter(whole, model, adapter)
    return _apply(whole, parallel, world_size)


def dry_apply_recipe(recipe: Recipe, world_size: int) -> Mapping[str, object]:
    """Dry-run a recipe.

    Custom models do not run a row, since their inputs are unknown.
    """
    if isinstance(recipe.model, ModelConfig):
        adapter = recipe.adapter if isinstance(recipe.adapter, LoRAConfig) else None
        return dry_apply(recipe.model, recipe.parallel, world_size, adapter)
    from windlass.train.targets.model import build_own_model  # lazy: few recipes have one

    try:
        whole = build_own_model(recipe, recipe.model, device=torch.device("meta"))
    except SpecError:
        whole = build_own_model(recipe, recipe.model)
    return _apply(whole, recipe.parallel, world_size)


def _apply(whole: nn.Module, parallel: ParallelConfig, world_size: int) -> Mapping[str, object]:
    num_parameters = sum(parameter.numel() for parameter in whole.parameters())
    shape = mesh_shape(parallel, world_size, num_parameters=num_parameters)
    is_cheap = num_parameters <= _CHEAP_PARAMETERS and shape.pp == 1 and isinstance(whole, Decoder)
    with fake_world(world_size, torch.device("cpu" if is_cheap else "meta")) as world:
        parallelize(whole, parallel, world)
        locals_ = [one.to_local() if isinstance(one, DTensor) else one for one in whole.parameters()]
        facts: dict[str, object] = {
            "mesh": dict(shape.axes),
            "data": shape.data,
            "parameters": num_parameters,
            "parameters_of_process": sum(local.numel() for local in locals_),
            "bytes_of_process": sum(local.numel() * local.element_size() for local in locals_),
            "ran_backward": is_cheap,
        }
        if is_cheap:
            _run(whole, length=2 * shape.cp * shape.tp)
    return facts


@contextmanager
def fake_world(size: int, device: torch.device) -> Iterator[World]:
    """Yield rank 0 of a world whose other processes do not exist, so that collectives return arbitrary values.

    Raises:
        SpecError: a process group already exists.
    """
    if dist.is_initialized():
        message = "cannot apply a plan within a process group"
        raise SpecError([Problem(message, "invalid-call", hint="make the plan in a separate process")])
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield World(size=size, device=device)
    finally:
        dist.destroy_process_group()
        _forget_groups()


def _forget_groups() -> None:
    """Clear DTensor's caches, which refer to process groups that no longer exist."""
    from torch.distributed.tensor import debug

    clear = getattr(debug, "_clear_sharding_prop_cache", None)
    if clear is not None:  # older torch does not cache groups
        clear()


def _run(model: torch.nn.Module, *, length: int) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    tokens_BT = torch.zeros(1, length, dtype=torch.int64)
    sums = model(tokens_BT, labels_BT=tokens_BT)
    assert isinstance(sums, LossSums)
    sums.loss.backward()
