"""Warnings about settings of a plan that are valid but probably unintended."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.train.model.config import ModelConfig
from windlass.train.optim.config import MuonConfig, OptimConfig, OptimTarget
from windlass.train.parallel.mesh import MeshShape
from windlass.train.plan.figures import Figures
from windlass.train.plan.length import Length, steps_of
from windlass.train.plan.machine import GPUS, MachineSpec
from windlass.train.plan.memory import MemoryEstimate, rows_at_once
from windlass.train.recipe import Recipe

__all__ = ["memory_warnings", "suspects_of", "warnings_of"]

_LARGE_LR = 0.3
_ROOM = 0.9
"""Share of a GPU's memory that a plan may use; the allocator and libraries need the rest."""


def warnings_of(
    recipe: Recipe, machine: MachineSpec, shape: MeshShape, memory: MemoryEstimate, length: Length, figures: Figures
) -> Iterator[str]:
    """Yield warnings of one sentence each, which say what to try instead."""
    yield from memory_warnings(recipe, machine, shape, memory)
    yield from _of_speed(recipe, machine, shape, figures.counts.total)
    yield from _of_length(recipe, length)
    yield from suspects_of(recipe)
    yield from _of_proof(recipe)
    yield from _of_own_parts(recipe, figures)


def suspects_of(recipe: Recipe) -> Iterator[str]:
    """Yield a warning for each value that is valid but almost certainly a mistake; a run prints these too."""
    if not isinstance(recipe.optim, OptimTarget):
        yield from _of_rates(recipe.optim)
    if recipe.loss.z_loss > 1:
        yield f"loss.z_loss={recipe.loss.z_loss:g} outweighs the loss; the usual weight is 1e-5 to 1e-3"
    if isinstance(recipe.model, ModelConfig) and recipe.model.init_std > 1:
        yield f"model.init_std={recipe.model.init_std:g}: the usual standard deviation of initial weights is about 0.02"
    stop, end = recipe.stop, recipe.duration
    if stop is not None and stop.unit == end.unit and stop.value > end.value:
        yield f"stop={stop} is after the end of the run at {end} and has no effect"


def _of_rates(optim: OptimConfig) -> Iterator[str]:
    if isinstance(optim, OptimTarget):
        return
    rates = {"optim.lr": optim.lr, **{f"optim.groups.{at}.lr": group.lr for at, group in enumerate(optim.groups)}}
    if isinstance(optim, MuonConfig):
        rates["optim.adamw_lr"] = optim.adamw_lr
    for name, rate in rates.items():
        if rate == 0:
            yield f"{name}=0: these parameters do not train; set `is_frozen` of a group to save their optimiser state"
        elif rate is not None and rate > _LARGE_LR:
            yield f"{name}={rate:g} is larger than any rate that trains; the usual ones are below 0.01"
        if rate is not None and rate * optim.weight_decay >= 1:
            yield f"{name}={rate:g} with optim.weight_decay={optim.weight_decay:g} decays weights to zero in a single step"


def memory_warnings(recipe: Recipe, machine: MachineSpec, shape: MeshShape, memory: MemoryEstimate) -> Iterator[str]:
    """Yield a warning if a process needs more memory than a GPU has."""
    if not machine.gpu:
        return
    room = GPUS[machine.gpu].memory_bytes
    if memory.total <= _ROOM * room:
        return
    tries = []
    state = memory.weights + memory.gradients + memory.optimizer
    if state > room / 2 and shape.data == "ddp":
        tries.append("parallel.data=fsdp")
    elif state > room / 2:
        tries.append("more processes")
    if memory.activations > room / 5 and recipe.parallel.checkpointing is None:
        tries.append("parallel.checkpointing.kind=full")
    if memory.activations > room / 5 and rows_at_once(recipe, shape) > 1:
        tries.append(f"data.microbatch_tokens={recipe.data.sequence_length * max(1, rows_at_once(recipe, shape) // 2)}")
    if memory.logits > room / 5 and recipe.loss.kind != "chunked":
        tries.append("loss.kind=chunked")
    share = memory.total / room
    yield f"needs {share:.0%} of the memory of {machine.gpu}; try {' or '.join(tries) if tries else 'more processes'}"


def _of_speed(recipe: Recipe, machine: MachineSpec, shape: MeshShape, num_parameters: int) -> Iterator[str]:
    plan = recipe.parallel
    if plan.tensor > machine.per_node:
        yield (
            f"parallel.tensor={plan.tensor} spans nodes of {machine.per_node} GPUs: each layer waits for the network"
        )
    if machine.gpu and plan.precision == "float32":
        yield "parallel.precision=float32 does not use tensor cores; try parallel.precision=bfloat16"
    if machine.gpu and not plan.compile:
        yield "parallel.compile=false: compiled blocks are usually at least 20% faster"
    if shape.data == "fsdp" and shape.dp_shard > 8 * machine.per_node:
        groups = shape.dp_shard // (8 * machine.per_node)
        yield f"weights are gathered from {shape.dp_shard} processes; try parallel.data=hsdp parallel.replicas={groups}"
    if shape.data_parallel > 1 and shape.data == "ddp" and num_parameters > 3 * 10**9:
        yield "ddp keeps a whole copy of weights and optimiser on each process; try parallel.data=fsdp"


def _of_length(recipe: Recipe, length: Length) -> Iterator[str]:
    if recipe.duration.unit == "epochs" and (length.steps is None or length.is_bound):
        yield f"duration is {recipe.duration}: the number of steps depends on the data"
    every = recipe.checkpoint.every
    between = None if every is None else steps_of(every, recipe)
    if length.steps is not None and between is not None and between > length.steps and not recipe.no_checkpoints:
        yield f"checkpoint.every is {between} steps and the run has {length.steps}: only the last one is kept"


def _of_proof(recipe: Recipe) -> Iterator[str]:
    plan = recipe.parallel
    used = {
        "parallel.context": plan.context > 1,
        "parallel.expert": plan.expert > 1,
        "parallel.pipeline": plan.pipeline.stages > 1,
        "parallel.float8": plan.float8 is not None,
    }
    for name, is_used in used.items():
        if is_used:
            yield f"{name} is tested on CPU with few processes only, not on GPUs"


def _of_own_parts(recipe: Recipe, figures: Figures) -> Iterator[str]:
    if figures.is_own:
        yield "activations of a custom model are unknown: memory is without activations"
    if isinstance(recipe.optim, OptimTarget):
        yield f"the state of {recipe.optim.target} is counted as two numbers for each weight, as AdamW's"
