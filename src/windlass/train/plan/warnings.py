"""What can be, and is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.train.model.flops import count_parameters
from windlass.train.parallel.mesh import MeshShape
from windlass.train.plan.length import run_length, steps_of
from windlass.train.plan.machine import GPUS, Machine
from windlass.train.plan.memory import Memory, rows_at_once
from windlass.train.recipe import Recipe

__all__ = ["warnings_of"]

_ROOM = 0.9
"""Share of a GPU's memory that a plan may take: the allocator and libraries need the rest."""


def warnings_of(recipe: Recipe, machine: Machine, shape: MeshShape, memory: Memory) -> Iterator[str]:
    """One sentence each, with what to try."""
    yield from _of_memory(recipe, machine, shape, memory)
    yield from _of_speed(recipe, machine, shape)
    yield from _of_length(recipe)
    yield from _of_proof(recipe)


def _of_memory(recipe: Recipe, machine: Machine, shape: MeshShape, memory: Memory) -> Iterator[str]:
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


def _of_speed(recipe: Recipe, machine: Machine, shape: MeshShape) -> Iterator[str]:
    plan = recipe.parallel
    if plan.tensor > machine.per_node:
        yield (
            f"parallel.tensor={plan.tensor} crosses nodes of {machine.per_node} GPUs: each layer waits for the network"
        )
    if machine.gpu and plan.precision == "float32":
        yield "parallel.precision=float32 leaves tensor cores idle; try parallel.precision=bfloat16"
    if machine.gpu and not plan.compile:
        yield "parallel.compile=false: compiled blocks are usually faster by a fifth or more"
    if shape.data == "fsdp" and shape.dp_shard > 8 * machine.per_node:
        groups = shape.dp_shard // (8 * machine.per_node)
        yield f"weights are gathered from {shape.dp_shard} processes; try parallel.data=hsdp parallel.replicas={groups}"
    if shape.data_parallel > 1 and shape.data == "ddp" and count_parameters(recipe.model).total > 3 * 10**9:
        yield "ddp keeps a whole copy of weights and optimiser on each process; try parallel.data=fsdp"


def _of_length(recipe: Recipe) -> Iterator[str]:
    length = run_length(recipe)
    if recipe.duration.unit == "epochs":
        yield f"duration is {recipe.duration}: how many steps that is depends on the data"
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
            yield f"{name} is proven on CPU and in small worlds only, not on GPUs"
