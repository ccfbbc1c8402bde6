"""Mesh of processes, and the sizes of its axes, from a plan and the number of processes.

Computing the sizes needs no torch, so that `--dry-run` and `--plan` can reject a plan before a GPU is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from windlass.core.errors import Problem, SpecError
from windlass.core.phrases import count
from windlass.train.data.protocol import Share

if TYPE_CHECKING:
    from windlass.train.model.config import ModelConfig
    from windlass.train.parallel.config import ParallelConfig
    from windlass.train.parallel.world import World

__all__ = ["AUTO_FSDP_PARAMETERS", "MeshShape", "build_mesh", "check_model", "mesh_shape"]

AUTO_FSDP_PARAMETERS = 1_000_000_000
"""`data: auto` shards models of at least this many parameters; smaller ones are faster with a copy on each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """Sizes of the axes, slowest first: neighbouring ranks differ in the last axis.

    Attributes:
        data: resolved value of `auto`; `none` if one process holds the model and its batch.
        pp: pipeline stages.
        dp_replicate: groups that each hold a whole model.
        dp_shard: processes over which weights are sharded.
        cp: processes that split a sequence; weights are sharded over them too.
        tp: processes that split each matrix.
        ep: processes that split the experts; part of dp_shard x cp, not a separate axis.
    """

    data: Literal["none", "ddp", "fsdp", "hsdp"]
    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the axes larger than 1, slowest first."""
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        return tuple((name, getattr(self, name)) for name in names if getattr(self, name) > 1)

    @property
    def world_size(self) -> int:
        """Number of all processes."""
        return prod(size for _, size in self.axes)

    @property
    def is_sharded(self) -> bool:
        """Return whether FSDP shards the weights."""
        return self.data in {"fsdp", "hsdp"}

    @property
    def data_parallel(self) -> int:
        """Number of processes (or groups of them) that take different rows."""
        return self.dp_replicate * self.dp_shard

    def share(self, rank: int) -> Share:
        """Return which rows the process with this rank takes."""
        inner = self.cp * self.tp
        return Share(rank=rank // inner % self.data_parallel, world=self.data_parallel)


def mesh_shape(config: ParallelConfig, world_size: int, *, num_parameters: int | None = None) -> MeshShape:
    """Return the sizes of the axes for a given number of processes.

    Args:
        num_parameters: number of parameters, which decides `data: auto`; if None, the model counts as small.

    Raises:
        SpecError: sizes do not divide; each problem has its field.
    """
    problems = list(_misfits(config, world_size))
    if problems:
        raise SpecError(problems)
    pp, cp, tp = config.pipeline.stages, config.context, config.tensor
    rest = world_size // (pp * cp * tp)
    data = config.data
    if data == "auto":
        data = "fsdp" if pp == 1 and (num_parameters or 0) >= AUTO_FSDP_PARAMETERS else "ddp"
    if config.expert > 1 or cp > 1:
        data = "fsdp" if data == "ddp" else data
    replicas = {"ddp": rest, "fsdp": 1, "hsdp": config.replicas}[data]
    shards = rest // replicas
    if shards * cp == 1:
        data = "ddp"  # hsdp with as many replicas as processes shards nothing
    return MeshShape(
        data="none" if rest * cp == 1 else data,
        pp=pp,
        dp_replicate=replicas,
        dp_shard=shards,
        cp=cp,
        tp=tp,
        ep=config.expert,
    )


def _misfits(config: ParallelConfig, world_size: int) -> Iterator[Problem]:
    sizes = {"pipeline.stages": config.pipeline.stages, "context": config.context, "tensor": config.tensor}
    used = prod(sizes.values())
    if world_size % used:
        name = max(sizes, key=lambda key: sizes[key])
        factors = " x ".join(str(size) for size in sizes.values() if size > 1)
        message = f"parallel.{name}: {world_size} processes do not divide into groups of {factors}"
        yield Problem(message, "shape-conflict", hint=f"use a multiple of {used} processes, or a smaller {name}")
        return
    rest = world_size // used
    yield from _pipeline_misfits(config)
    if config.data == "hsdp" and rest % config.replicas:
        message = f"parallel.replicas: {rest} data-parallel processes do not divide into {config.replicas} replicas"
        yield Problem(message, "shape-conflict", hint=f"choose a divisor of {rest}")
    elif config.data != "hsdp" and config.replicas != 1:
        message = f"parallel.replicas: {config.replicas} replicas need `data: hsdp`, but `data` is {config.data!r}"
        yield Problem(message, "setting-unused", hint="set `data: hsdp`, or remove `replicas`")
    else:
        shards = rest // config.replicas * config.context
        if shards % config.expert:
            message = f"parallel.expert: {config.expert} does not divide the {shards} processes that shard weights"
            yield Problem(message, "shape-conflict", hint=f"choose a divisor of {shards}")
    if config.float8 is not None and config.tensor > 1:
        message = f"parallel.float8 is not supported with parallel.tensor {config.tensor}"
        yield Problem(message, "shape-conflict", hint="set `tensor: 1`, or remove `float8`")
    if config.strict is not None:
        yield from _strict_misfits(config, rest)


def _pipeline_misfits(config: ParallelConfig) -> Iterator[Problem]:
    stages = config.pipeline.stages
    if stages == 1:
        return
    if config.data not in {"auto", "ddp"}:
        message = f"parallel.pipeline.stages: {stages} stages with `data: {config.data}` are not supported"
        yield Problem(message, "shape-conflict", hint="set `data: ddp`, or use one stage")
    for name, size in (("tensor", config.tensor), ("context", config.context), ("expert", config.expert)):
        if size > 1:
            message = f"parallel.pipeline.stages: {stages} stages with parallel.{name} {size} are not supported"
            yield Problem(message, "shape-conflict", hint=f"set {name}=1, or use one stage")


def _strict_misfits(config: ParallelConfig, rest: int) -> Iterator[Problem]:
    assert config.strict is not None
    shards = config.strict.shards
    if shards % rest:
        message = f"parallel.strict.shards: {shards} is not a multiple of the {rest} data-parallel processes"
        yield Problem(message, "shape-conflict", hint=f"use a divisor of {shards} processes, or more shards")
    for name, size in (
        ("tensor", config.tensor),
        ("context", config.context),
        ("expert", config.expert),
        ("pipeline.stages", config.pipeline.stages),
    ):
        if size > 1:
            message = f"parallel.strict: sums within a layer differ with parallel.{name} {size}"
            yield Problem(message, "shape-conflict", hint=f"remove `strict`, or set {name}=1")


def check_model(config: ParallelConfig, model: ModelConfig, *, sequence_length: int | None = None) -> list[Problem]:
    """Return a problem for each size of the decoder that the plan does not divide; empty if there is none."""
    tensor, context = config.tensor, config.context
    wanted = [
        ("tensor", tensor, model.attention.num_heads, "query heads"),
        ("tensor", tensor, model.num_kv_heads, "key and value heads"),
        ("tensor", tensor, model.vocab_size, "rows of the vocabulary"),
    ]
    if model.moe is None:
        wanted.append(("tensor", tensor, model.hidden, "channels of the feed-forward layer"))
    elif config.expert > 1:
        wanted.append(("expert", config.expert, model.moe.num_experts, "experts"))
    if sequence_length is not None:
        wanted.append(("context", context, sequence_length, "tokens of a row"))
        wanted.append(("tensor", tensor, sequence_length // context, "tokens of a process's part of a row"))
    problems = [
        Problem(
            f"parallel.{name}: {count} {what} are not divisible by {size}",
            "shape-conflict",
            hint=f"choose parallel.{name} so that {size} divides {count}",
        )
        for name, size, count, what in wanted
        if count % size
    ]
    return problems + list(_conflicts(config, model))


def _conflicts(config: ParallelConfig, model: ModelConfig) -> Iterator[Problem]:
    stages = config.pipeline.stages
    if config.pipeline.num_groups > model.num_layers:
        message = f"parallel.pipeline.stages: {config.pipeline.num_groups} groups of {count(model.num_layers, 'layer')}"
        yield Problem(message, "shape-conflict", hint="use fewer stages, or the schedule 1f1b with one group for each")
    if stages > 1 and model.moe is not None:
        message = f"parallel.pipeline.stages: {stages} stages are not supported with expert losses"
        yield Problem(message, "shape-conflict", hint="use one stage; `expert` distributes the experts")
    if stages > 1 and model.is_tied:
        message = f"parallel.pipeline.stages: {stages} stages are not supported with tied embedding and head"
        yield Problem(message, "shape-conflict", hint="set `model.is_tied: false`, or use one stage")
    if config.expert > 1 and model.moe is None:
        message = f"parallel.expert: {config.expert} processes, but the model has no experts"
        yield Problem(message, "setting-unused", hint="remove `parallel.expert`, or set `model.moe`")
    if model.moe is not None and config.tensor > 1:
        message = f"parallel.tensor: {config.tensor} processes cannot split experts"
        yield Problem(message, "shape-conflict", hint="set `tensor: 1`; `expert` splits them")
    elif config.expert > 1 and config.tensor > 1:
        message = f"parallel.expert: {config.expert} together with parallel.tensor {config.tensor} is not supported"
        yield Problem(message, "shape-conflict", hint="set one of them to 1")


def build_mesh(shape: MeshShape, world: World) -> None:
    """Set `world.mesh`, `world.expert_mesh` and `world.share`. Collective: creates process groups.

    Call it once in each process.

    Raises:
        SpecError: the world has another number of processes.
    """
    if shape.world_size != world.size:
        message = f"a mesh of {shape.world_size} processes in a world of {world.size}"
        raise SpecError([Problem(message, "shape-conflict", hint=f"start {shape.world_size} processes")])
    world.share = shape.share(world.rank)
    if world.size == 1:
        return
    from torch.distributed.device_mesh import init_device_mesh  # lazy: the code above needs no torch

    names, sizes = zip(*shape.axes, strict=True)
    kind = "cpu" if world.device.type == "meta" else world.device.type
    world.mesh = init_device_mesh(kind, sizes, mesh_dim_names=names)
    if shape.ep > 1:
        copies = shape.data_parallel * shape.cp // shape.ep
        sizes, names = (shape.pp, copies, shape.ep), ("pp", "ep_replicate", "ep")
        world.expert_mesh = init_device_mesh(kind, sizes, mesh_dim_names=names)
