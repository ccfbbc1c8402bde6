"""Distribution of a model over processes, in a fixed order of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from windlass.core.errors import Problem, SpecError
from windlass.train.model.adapters import has_dropout
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.activation import checkpoint_activations
from windlass.train.parallel.compiling import compile_blocks
from windlass.train.parallel.context import split_rows
from windlass.train.parallel.expert import expert_parameters, split_experts
from windlass.train.parallel.float8 import use_float8
from windlass.train.parallel.mesh import MeshShape, build_mesh, check_model, mesh_shape
from windlass.train.parallel.replicate import Replicas, agree
from windlass.train.parallel.strict import TreeReduceScatter
from windlass.train.parallel.tensor import settle_gradients, split_matrices

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from windlass.train.parallel.config import ParallelConfig
    from windlass.train.parallel.pipeline import Pipeline
    from windlass.train.parallel.world import World

__all__ = ["blocks_of", "parallelize", "pipeline_of", "replicas_of"]

# Attributes of a model that are neither parameters nor modules: set without nn.Module's `__setattr__`, which would register them.
_REPLICAS, _PIPELINE = "_windlass_replicas", "_windlass_pipeline"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parallelize(model: nn.Module, config: ParallelConfig, world: World, *, for_training: bool = True) -> nn.Module:
    """Distribute a model over the processes of a world, in place. Collective.

    Sets `world.mesh` and `world.share`.

    Gradients of the result are sums over data-parallel processes, never means. Parameter names do not change.

    Args:
        model: a decoder, or any module (which takes ddp, fsdp and hsdp). A model on the meta device is
            allocated on the world's device, uninitialized: call `init_weights`, or load weights. A model with
            weights gets those of rank 0.
        for_training: if false, apply nothing that only the backward pass needs.

    Raises:
        SpecError: sizes do not divide; the message names the field.
    """
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    shape = mesh_shape(config, world.size, num_parameters=num_parameters)
    _check(model, config, shape)
    if world.mesh is None:
        build_mesh(shape, world)
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    if not is_meta:
        model.to(world.device)
        if world.size > 1:
            agree(model)
    # Split stages, matrices and experts first: later steps must see the parts that a process computes with. Checkpointing
    # wraps a block's forward before compilation, so that the recomputation is compiled. FSDP's hooks then surround
    # compiled blocks: inside, their collectives would break the graph. Code that references parameters runs after
    # they are allocated.
    groups = _split(model, config, shape, world)
    _rewrite_blocks(model, config, world.device, for_training=for_training)
    if shape.is_sharded:
        _shard(model, config, shape, world)
    if is_meta:
        model.to_empty(device=world.device)
    if not shape.is_sharded and config.precision != "float32":
        _autocast(model, world.device, _DTYPES[config.precision])
    if for_training:
        _sum_plain_gradients(model, config, shape, world)
    if shape.cp > 1:
        split_rows(cast("Decoder", model), _axis(world, "cp").get_group())
    if groups:
        from windlass.train.parallel.pipeline import Pipeline  # lazy: torch's schedules import its compiler

        pipe = Pipeline(cast("Decoder", model), groups, config.pipeline, _axis(world, "pp").get_group(), world.device)
        object.__setattr__(model, _PIPELINE, pipe)
    return model


def pipeline_of(model: nn.Module) -> Pipeline | None:
    """Return the pipeline that runs batches through several stages, or None with a single stage.

    Surround its calls with `no_sync(model, False)`, then call `sync_gradients(model)`.
    """
    found: Pipeline | None = getattr(model, _PIPELINE, None)
    return found


def replicas_of(model: nn.Module) -> Replicas | None:
    """Return the replicas that sum the gradients of a model with `data: ddp`, or None on one process."""
    found = getattr(model, _REPLICAS, None)
    return found if isinstance(found, Replicas) else None


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers to shard, compile and recompute separately; empty if the model does not name them."""
    blocks = getattr(model, "blocks", None)
    if isinstance(blocks, nn.ModuleDict):
        return list(blocks.values())
    if isinstance(blocks, (nn.ModuleList, nn.Sequential)):
        return list(blocks)
    return []


def _check(model: nn.Module, config: ParallelConfig, shape: MeshShape) -> None:
    if isinstance(model, Decoder):
        problems = check_model(config, model.config)
        if problems:
            raise SpecError(problems)
        return
    for name, size in (("tensor", shape.tp), ("context", shape.cp), ("expert", shape.ep), ("pipeline", shape.pp)):
        if size > 1:
            message = f"parallel.{name}: cannot split a {type(model).__name__} in {size}"
            raise SpecError([Problem(message, "unsupported-model", hint="set it to 1, or train a Decoder")])


def _axis(world: World, *names: str) -> DeviceMesh:
    """Return the submesh made of those of the given axes that exist."""
    assert world.mesh is not None
    found = [name for name in names if name in (world.mesh.mesh_dim_names or ())]
    return world.mesh[tuple(found)] if len(found) > 1 else world.mesh[found[0]]


def _split(model: nn.Module, config: ParallelConfig, shape: MeshShape, world: World) -> list[list[str]]:
    """Keep this process's part of a model that is split; return block names by group if there are stages."""
    if shape.tp > 1:
        split_matrices(cast("Decoder", model), _axis(world, "tp"))
    if shape.ep > 1:
        assert world.expert_mesh is not None
        split_experts(model, world.expert_mesh["ep"])
    if shape.pp > 1:
        from windlass.train.parallel.pipeline import split_blocks  # lazy: as above

        return split_blocks(cast("Decoder", model), config.pipeline, _axis(world, "pp").get_local_rank())
    return []


def _rewrite_blocks(model: nn.Module, config: ParallelConfig, device: torch.device, *, for_training: bool) -> None:
    blocks = blocks_of(model)
    if for_training and config.float8 is not None:
        use_float8(model, config.float8, device)
    if for_training and config.checkpointing is not None:
        checkpoint_activations(
            blocks or [model], config, is_random=not isinstance(model, Decoder) or has_dropout(model)
        )
    if config.compile:
        compile_blocks(model, blocks)


def _sum_plain_gradients(model: nn.Module, config: ParallelConfig, shape: MeshShape, world: World) -> None:
    """Sum the gradients of replicated parameters that FSDP does not manage."""
    if shape.tp > 1 and not shape.is_sharded:
        settle_gradients(model)
    parameters: Iterable[nn.Parameter] | None = None
    group: ProcessGroup | None = None
    if shape.data == "ddp":
        parameters, group = model.parameters(), _axis(world, "dp_replicate").get_group()
    elif shape.ep > 1 and world.expert_mesh is not None and world.expert_mesh["ep_replicate"].size() > 1:
        parameters, group = expert_parameters(model), world.expert_mesh["ep_replicate"].get_group()
    if parameters is not None and group is not None:
        is_strict = config.strict is not None
        replicas = Replicas(parameters, group, dtype=_DTYPES[config.reduce], is_strict=is_strict)
        object.__setattr__(model, _REPLICAS, replicas)


def _shard(model: nn.Module, config: ParallelConfig, shape: MeshShape, world: World) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = _axis(world, "dp_replicate", "dp_shard", "cp")
    if shape.cp > 1 and shape.dp_shard > 1:
        # Weights are sharded over both axes as one.
        mesh = _axis(world, "dp_shard", "cp")._flatten("dp_shard_cp")
        if shape.dp_replicate > 1:
            assert world.mesh is not None
            mesh = _joined(world.mesh, mesh)
    policy = MixedPrecisionPolicy(
        param_dtype=None if config.precision == "float32" else _DTYPES[config.precision],
        reduce_dtype=_DTYPES[config.reduce],
    )
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "ignored_params": set(expert_parameters(model))}
    for block in blocks_of(model):
        fully_shard(block, reshard_after_forward=shape.pp == 1, **settings)
    fully_shard(model, **settings)
    _sum_gradients(model)
    if config.strict is not None:
        replicas = _axis(world, "dp_replicate").get_group() if shape.dp_replicate > 1 else None
        _each_shard(model, lambda module: module.set_custom_reduce_scatter(TreeReduceScatter(replicas)))


def _sum_gradients(model: nn.Module) -> None:
    """Make FSDP sum gradients instead of averaging them, because the loss is already divided by the total weight."""
    _each_shard(model, lambda module: module.set_gradient_divide_factor(1.0))
    # gloo has no premultiplied sum, which is not needed
    _each_shard(model, lambda module: module.set_force_sum_reduction_for_comms(True))


def _joined(root: DeviceMesh, shards: DeviceMesh) -> DeviceMesh:
    """Return the mesh of replicas x shards, with two shard axes flattened into one."""
    join = getattr(type(root), "_concatenate", None)
    if join is None:  # torch 2.11 finds a flattened axis by its name
        return root["dp_replicate", "dp_shard_cp"]
    return cast("DeviceMesh", join([root["dp_replicate"], shards]))


def _each_shard(model: nn.Module, act: Callable[[Any], None]) -> None:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            act(module)


def _autocast(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Run the matrix products of the forward pass in lower precision, without converting weights."""
    open_ones: list[torch.autocast] = []

    def enter(*_: object) -> None:
        context = torch.autocast(device.type, dtype)
        context.__enter__()
        open_ones.append(context)

    def leave(*_: object) -> None:
        open_ones.pop().__exit__(None, None, None)

    model.register_forward_pre_hook(enter)
    model.register_forward_hook(leave, always_call=True)
