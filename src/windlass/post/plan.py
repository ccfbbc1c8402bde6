"""Plan of a post-training recipe: memory of each device, work of a batch, feasibility of the placement. Needs no torch.

Numbers are upper bounds: prompts and answers are taken as long as the recipe allows. Memory excludes fragmentation and
libraries, as `train/plan/memory.py` does; an engine computes in float32, as it is built.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from windlass.core.errors import WindlassError
from windlass.core.phrases import size
from windlass.post.control.config import RewardsConfig
from windlass.post.objectives.config import SupervisedConfig
from windlass.post.recipe import (
    DistillationRecipe,
    PolicyRecipe,
    PostRecipe,
    RolloutRecipe,
    ServedTeacher,
    SftRecipe,
    StartingModel,
    architecture,
)
from windlass.train.model.config import ModelConfig
from windlass.train.model.flops import count_parameters, flops_per_token, kv_bytes_per_token
from windlass.train.optim.config import LossConfig
from windlass.train.plan.machine import GPUS, MachineSpec
from windlass.train.plan.plan import TrainPlan, plan_recipe
from windlass.train.plan.warnings import memory_warnings

__all__ = [
    "EngineEstimate",
    "MemoryPart",
    "PostPlan",
    "PostSpeed",
    "WorkEstimate",
    "plan_post",
    "room_in_cluster",
]

Phase = Literal["always", "learning", "generating", "evaluating"]

_TILE = 16  # tokens of a tile of slots (rollout/slots.py), which needs torch
_PREFILL_TOKENS = 256  # of the engine
_VALUES = 4  # float32
_SAMPLING_COPIES = 6  # of the logits of all slots, while tokens are chosen
_SCORING_COPIES = 4  # of a chunk of logits, in the backward pass of log-probabilities
_CHUNK_LOGITS = 2**27
_ROOM = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """Part of a device's memory, and when it is allocated."""

    name: str
    num_bytes: int
    phase: Phase = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEstimate:
    """An engine that generates.

    Attributes:
        num_engines: engines of the run: one per learner, or the workers.
        slot_tokens: tokens of a slot, in whole tiles.
        slot_bytes: keys and values of a slot.
        weights_bytes: the engine's copy of the weights.
    """

    num_engines: int
    num_slots: int
    slot_tokens: int
    slot_bytes: int
    weights_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEstimate:
    """Work of a batch over all processes, at most.

    Attributes:
        name: `generation`, `reference`, `teacher`, `proximal` or `learning`.
    """

    name: str
    tokens: int
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PostSpeed:
    """Time of a batch on a kind of GPU.

    Attributes:
        learning_s: learning and scoring at the given fraction of the peak.
        generation_s: lower bound, the reading of weights and cache at the full bandwidth of memory; 0 without rollouts.
        hours: duration of the run; None if its length is unknown.
        memory_share: share of a GPU's memory that the fullest device needs.
        slots: slots of an engine that fit beside everything else; None without rollouts.
    """

    gpu: str
    learning_s: float
    generation_s: float
    hours: float | None
    memory_share: float
    slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostPlan:
    """Cost of a post-training recipe on a number of processes.

    Attributes:
        learner: plan of what learns, with rows of a prompt and its answer.
        devices: memory by device; devices that hold the same have one name.
        host_bytes: memory of the first learner's machine for versions of weights on their way to workers.
        processes: number of processes by kind.
        sandbox: what this machine lacks for programs of answers; None if nothing runs in a sandbox.
    """

    learner: TrainPlan
    devices: Mapping[str, tuple[MemoryPart, ...]]
    engine: EngineEstimate | None
    work: tuple[WorkEstimate, ...]
    speeds: tuple[PostSpeed, ...]
    host_bytes: int
    processes: Mapping[str, int]
    sandbox: tuple[str, ...] | None
    warnings: tuple[str, ...]

    def to_data(self) -> dict[str, object]:
        """Return the plan as JSON-safe data: the learner's, and the rest under `post`."""
        own = {name: value for name, value in asdict(self).items() if name != "learner"}
        own["memory_total_bytes"] = {name: total_bytes(parts) for name, parts in self.devices.items()}
        return {**self.learner.to_data(), "warnings": list(self.warnings), "post": own}


def total_bytes(parts: Sequence[MemoryPart]) -> int:
    """Return the most memory that is allocated at one time."""
    phases = {part.phase for part in parts}
    return max(sum(part.num_bytes for part in parts if part.phase in ("always", phase)) for phase in phases)


def plan_post(recipe: PostRecipe, machine: MachineSpec, *, apply: bool = True) -> PostPlan:
    """Compute the cost of a recipe on a machine. Reads the settings of the models that it names.

    Raises:
        SpecError: shapes do not divide, or a model cannot be read.
    """
    settled = recipe.settled()
    assert isinstance(settled, PostRecipe)
    assert isinstance(settled.model, ModelConfig)
    learned = _learned(recipe, settled)
    learner = plan_recipe(learned, machine, apply=apply)
    engine = _engine(recipe, settled.model, machine)
    devices = _devices(recipe, settled.model, learner, engine)
    is_remote = isinstance(recipe, RolloutRecipe) and bool(recipe.asynchronous.bound)
    work = tuple(_work(recipe, settled.model, learner))
    plan = PostPlan(
        learner=learner,
        devices=devices,
        engine=engine,
        work=work,
        speeds=tuple(
            _speed(gpu, recipe, settled.model, learner, engine, devices, work)
            for gpu in ([machine.gpu] if machine.gpu else GPUS)
        ),
        host_bytes=2 * _VALUES * learner.parameters.total if is_remote else 0,
        processes=_processes(recipe, machine),
        sandbox=_sandbox(recipe),
        warnings=(),
    )
    replaced = set(memory_warnings(learned, machine, learner.shape, learner.memory))  # by those of whole devices
    kept = [each for each in learner.warnings if each not in replaced]
    return replace(plan, warnings=(*kept, *_warnings(recipe, machine, plan)))


# ------------------------------------------------------------------------------------------------------------ the parts


def _learned(recipe: PostRecipe, settled: PostRecipe) -> PostRecipe:
    """Return the recipe whose rows are what is learned in an optimiser step."""
    data, loss = recipe.data, settled.loss
    if not isinstance(recipe, SftRecipe) or recipe.objective != SupervisedConfig():
        loss = LossConfig(kind="chunked")
    if isinstance(recipe, RolloutRecipe):
        answers = recipe.data.batch_rows * recipe.rollout.group_size
        rows, length = max(1, answers // recipe.rollout.minibatches), _longest(recipe)
        data = replace(data, batch_rows=rows, max_length=length)
    elif recipe.ROWS == "pair":
        data = replace(data, batch_rows=2 * data.batch_rows)
    return replace(settled, data=data, loss=loss)


def _longest(recipe: RolloutRecipe) -> int:
    return recipe.data.max_length + recipe.rollout.max_new_tokens


def _engine(recipe: PostRecipe, model: ModelConfig, machine: MachineSpec) -> EngineEstimate | None:
    if not isinstance(recipe, RolloutRecipe) or recipe.rollout.replay or recipe.rollout.engine.name != "embedded":
        return None  # other engines have memory of their own rules, or of their own machine
    settings = recipe.asynchronous
    tokens = _TILE * -(-_longest(recipe) // _TILE)
    return EngineEstimate(
        num_engines=settings.workers if settings.bound else machine.world,
        num_slots=recipe.rollout.num_slots,
        slot_tokens=tokens,
        slot_bytes=tokens * kv_bytes_per_token(model, _VALUES),
        weights_bytes=_VALUES * count_parameters(model).total,
    )


def _engine_parts(
    model: ModelConfig, num_slots: int, slot_bytes: int, lends: str, phase: Phase = "generating"
) -> list[MemoryPart]:
    """Return the memory of an engine; what it lends, or what exists only for a while, is of a phase."""
    weights = _VALUES * count_parameters(model).total
    prompts = _PREFILL_TOKENS * kv_bytes_per_token(model, _VALUES)
    sampling = _SAMPLING_COPIES * _VALUES * num_slots * model.vocab_size
    is_short = phase == "evaluating"
    return [
        MemoryPart(
            name="engine weights", num_bytes=weights, phase=phase if lends == "weights" or is_short else "always"
        ),
        MemoryPart(
            name="engine slots",
            num_bytes=num_slots * slot_bytes,
            phase="always" if lends == "none" and not is_short else phase,
        ),
        MemoryPart(name="engine work", num_bytes=prompts + sampling, phase=phase),
    ]


def _devices(
    recipe: PostRecipe, model: ModelConfig, learner: TrainPlan, engine: EngineEstimate | None
) -> dict[str, tuple[MemoryPart, ...]]:
    """Return the memory by device."""
    own = _learner_parts(recipe, model, learner)
    if engine is None or not isinstance(recipe, RolloutRecipe):
        return {"a learner": tuple(own)}
    settings, machine = recipe.asynchronous, learner.machine
    lends = recipe.rollout.colocate
    worker = _engine_parts(model, engine.num_slots, engine.slot_bytes, lends)
    if not settings.bound:
        is_whole = recipe.adapter is None and not learner.shape.is_sharded
        gathered = [] if is_whole else [MemoryPart(name="gathered", num_bytes=engine.weights_bytes, phase="generating")]
        return {"a learner": (*own, *worker, *gathered)}
    if settings.place == "ray":
        return {"a learner": tuple(own), "a worker": tuple(_always(worker))}
    found: dict[str, tuple[MemoryPart, ...]] = {}
    places = [(machine.world + worker_at) % machine.per_node for worker_at in range(settings.workers)]
    for place in range(machine.per_node):
        is_learner, count = place < machine.world, places.count(place)
        parts = [*(own if is_learner else []), *[part for _ in range(count) for part in _always(worker)]]
        names = [
            *(["a learner"] if is_learner else []),
            *([f"{count} workers" if count > 1 else "a worker"] if count else []),
        ]
        if parts:
            found[f"a GPU of {' and '.join(names)}" if len(names) > 1 else names[0]] = tuple(parts)
    return found


def _always(parts: Sequence[MemoryPart]) -> list[MemoryPart]:
    """Return the parts as those of a worker, which generates all the time."""
    return [replace(part, phase="always") for part in parts]


def _learner_parts(recipe: PostRecipe, model: ModelConfig, learner: TrainPlan) -> list[MemoryPart]:
    memory, shape = learner.memory, learner.shape
    shards = shape.dp_shard * shape.cp if shape.is_sharded else 1
    logits = memory.logits
    if not isinstance(recipe, SftRecipe) and model.head == "vocabulary":
        tokens = learner.rows_at_once * learner.sequence_length
        logits = _SCORING_COPIES * _VALUES * min(tokens * model.vocab_size, _CHUNK_LOGITS)
    parts = [
        MemoryPart(name="weights", num_bytes=memory.weights),
        MemoryPart(name="optimizer", num_bytes=memory.optimizer),
        *(
            MemoryPart(name=name, num_bytes=_VALUES * count_parameters(other).total // shards)
            for name, other in _scoring(recipe, model)
        ),
        MemoryPart(name="gradients", num_bytes=memory.gradients, phase="learning"),
        MemoryPart(name="gathered", num_bytes=memory.gathered, phase="learning"),
        MemoryPart(name="activations", num_bytes=memory.activations, phase="learning"),
        MemoryPart(name="logits", num_bytes=logits, phase="learning"),
    ]
    if recipe.evaluate is not None and not recipe.no_evals:
        tokens = _TILE * -(-(recipe.data.max_length + recipe.evaluate.max_new_tokens) // _TILE)
        slot_bytes = tokens * kv_bytes_per_token(model, _VALUES)
        parts += _engine_parts(model, recipe.evaluate.num_slots, slot_bytes, "weights", "evaluating")
    return [part for part in parts if part.num_bytes]


def _scoring(recipe: PostRecipe, model: ModelConfig) -> list[tuple[str, ModelConfig]]:
    """Return the models that are kept in memory only to score answers; an adapter's base is no further one."""

    def of(named: StartingModel | ServedTeacher | None) -> ModelConfig | None:
        if isinstance(named, ServedTeacher):
            return None
        if named is None:
            return None if recipe.adapter is not None else model
        return architecture(named.path)

    found: list[tuple[str, ModelConfig | None]] = []
    if isinstance(recipe, PolicyRecipe) and recipe.objective.kl.coefficient > 0:
        found.append(("reference", of(recipe.reference)))
    if isinstance(recipe, DistillationRecipe):
        found.append(("teacher", of(recipe.teacher)))
    return [(name, other) for name, other in found if other is not None]


def _work(recipe: PostRecipe, model: ModelConfig, learner: TrainPlan) -> Iterator[WorkEstimate]:
    if not isinstance(recipe, RolloutRecipe):
        yield WorkEstimate(
            name="learning", tokens=learner.batch_tokens, flops=learner.flops_per_token * learner.batch_tokens
        )
        return
    rollout, groups, length = recipe.rollout, recipe.data.batch_rows, _longest(recipe)
    answers = groups * rollout.group_size
    forward = flops_per_token(model, length) / 3
    if not rollout.replay:
        rounds = 1 + rollout.refills
        tokens = rounds * (groups * recipe.data.max_length + answers * rollout.max_new_tokens)
        yield WorkEstimate(name="generation", tokens=tokens, flops=forward * tokens)
    if rollout.only:
        return
    for name, other in _scoring(recipe, model):
        yield WorkEstimate(
            name=name, tokens=answers * length, flops=flops_per_token(other, length) / 3 * answers * length
        )
    if rollout.steps_per_batch > 1:
        yield WorkEstimate(name="proximal", tokens=answers * length, flops=forward * answers * length)
    tokens = rollout.epochs * answers * length
    yield WorkEstimate(name="learning", tokens=tokens, flops=learner.flops_per_token * tokens)


def _speed(
    gpu: str,
    recipe: PostRecipe,
    model: ModelConfig,
    learner: TrainPlan,
    engine: EngineEstimate | None,
    devices: Mapping[str, tuple[MemoryPart, ...]],
    work: Sequence[WorkEstimate],
) -> PostSpeed:
    kind = GPUS[gpu]
    rate = learner.machine.world * kind.peak_flops(recipe.parallel.precision) * learner.machine.mfu
    learning_s = sum(each.flops for each in work if each.name != "generation") / rate
    generation_s, steps, slots = 0.0, 1, None
    together_s = learning_s
    if engine is not None and isinstance(recipe, RolloutRecipe):
        rollout = recipe.rollout
        answers = recipe.data.batch_rows * rollout.group_size * (1 + rollout.refills) / engine.num_engines
        num_steps = math.ceil(answers / engine.num_slots) * rollout.max_new_tokens
        read = engine.weights_bytes * learner.parameters.active / learner.parameters.total
        read += min(answers, engine.num_slots) * engine.slot_bytes
        generation_s, steps = num_steps * read / kind.memory_bytes_per_s, rollout.steps_per_batch
        together_s = max(learning_s, generation_s) if recipe.asynchronous.bound else learning_s + generation_s
        slots = min(_fitting(parts, engine, kind.memory_bytes) for parts in devices.values() if _num_engines(parts))
    hours = None if learner.length.steps is None else learner.length.steps / steps * together_s / 3600
    return PostSpeed(
        gpu=gpu,
        learning_s=learning_s,
        generation_s=generation_s,
        hours=hours,
        memory_share=max(map(total_bytes, devices.values())) / kind.memory_bytes,
        slots=slots,
    )


def _num_engines(parts: Sequence[MemoryPart]) -> int:
    return sum(part.name == "engine slots" and part.phase != "evaluating" for part in parts)


def _fitting(parts: Sequence[MemoryPart], engine: EngineEstimate, memory_bytes: int) -> int:
    """Return the slots of each engine that fit on a device beside everything else."""
    slots = [part for part in parts if part.name == "engine slots" and part.phase != "evaluating"]
    others = [part for part in parts if part not in slots]
    phases: list[Phase] = [slots[0].phase] if slots[0].phase != "always" else ["learning", "generating", "evaluating"]
    used = max(sum(part.num_bytes for part in others if part.phase in ("always", phase)) for phase in phases)
    return max(0, int((_ROOM * memory_bytes - used) / len(slots) // engine.slot_bytes))


# ---------------------------------------------------------------------------------------------------------- feasibility


def _processes(recipe: PostRecipe, machine: MachineSpec) -> dict[str, int]:
    found = {"learners" if machine.world > 1 else "learner": machine.world}
    if isinstance(recipe, RolloutRecipe) and recipe.asynchronous.bound:
        found["engine workers"] = recipe.asynchronous.workers
    if isinstance(recipe, PolicyRecipe):
        found["reward workers a learner"] = recipe.reward.num_workers
    return found


def _rewards(recipe: PostRecipe) -> list[RewardsConfig]:
    """Return the settings of rewards that run answers' programs."""
    rewards = [recipe.reward] if isinstance(recipe, PolicyRecipe) else []
    rewards += [recipe.evaluate.reward] if recipe.evaluate is not None and recipe.evaluate.reward is not None else []
    return [config for config in rewards if any(each.name == "code" for each in config.verifiers)]


def _sandbox(recipe: PostRecipe) -> tuple[str, ...] | None:
    from windlass.post.rewards import sandbox  # lazy: its use tries what this machine can give

    return sandbox.missing() if _rewards(recipe) else None


def _warnings(recipe: PostRecipe, machine: MachineSpec, plan: PostPlan) -> Iterator[str]:
    if plan.sandbox and any(config.sandbox == "strict" for config in _rewards(recipe)):
        yield f"`code` is refused on this machine unless `reward.sandbox: weak`: {'; '.join(plan.sandbox)}"
    if machine.gpu:
        yield from _of_memory(recipe, plan)
    if not isinstance(recipe, RolloutRecipe) or plan.engine is None:
        return
    settings, engine = recipe.asynchronous, plan.engine
    batches = 1 + settings.ahead if settings.bound else 1
    answers = math.ceil(batches * recipe.data.batch_rows * recipe.rollout.group_size / engine.num_engines)
    if engine.num_slots > max(2, answers):
        wasted = size((engine.num_slots - answers) * engine.slot_bytes)
        yield (
            f"rollout.num_slots={engine.num_slots}, but an engine has at most {answers} answers to generate: "
            f"{wasted} of its slots are never used"
        )
    if not settings.bound:
        return
    if settings.place == "ray":
        yield from _of_cluster(recipe)
        return
    cores, used = (
        len(os.sched_getaffinity(0)),
        settings.workers * settings.threads + min(machine.world, machine.per_node),
    )
    if used > cores:
        threads = f"{settings.workers} x {settings.threads} threads of workers and {used - settings.workers * settings.threads} learner(s)"
        yield f"{threads} are more than the {cores} cores of this machine; lower async.workers or async.threads"


def _of_memory(recipe: PostRecipe, plan: PostPlan) -> Iterator[str]:
    speed, room = plan.speeds[0], GPUS[plan.learner.machine.gpu].memory_bytes
    for name, parts in plan.devices.items():
        share = total_bytes(parts) / room
        if share <= _ROOM:
            continue
        tries = []
        if (
            plan.engine is not None
            and _num_engines(parts)
            and speed.slots is not None
            and speed.slots < plan.engine.num_slots
        ):
            tries += [f"rollout.num_slots={speed.slots}"] if speed.slots > 1 else []
            is_sync = isinstance(recipe, RolloutRecipe) and not recipe.asynchronous.bound
            if is_sync and isinstance(recipe, RolloutRecipe) and recipe.rollout.colocate != "weights":
                tries.append("rollout.colocate=weights")
        learning = sum(part.num_bytes for part in parts if part.phase == "learning")
        if learning > room / 5:
            tries.append(f"data.microbatch_tokens={recipe.data.microbatch_tokens // 2}")
        yield f"{name} needs {share:.0%} of the memory of {speed.gpu}; try {' or '.join(tries) or 'more processes'}"


def _of_cluster(recipe: RolloutRecipe) -> Iterator[str]:
    """Yield what the Ray cluster of RAY_ADDRESS has no room for."""
    from windlass.post.workers.ray import cluster_nodes  # lazy: Ray costs a second

    settings = recipe.asynchronous
    try:
        nodes = cluster_nodes()
    except WindlassError as error:
        yield f"the room for {settings.workers} workers is not checked: {error.message}"
        return
    room = room_in_cluster(nodes, num_cpus=settings.threads, num_gpus=settings.gpus)
    if room < settings.workers:
        each = f"{settings.threads} CPUs" + (f" and {settings.gpus:g} GPUs" if settings.gpus else "")
        yield f"the Ray cluster has room for {room} of {settings.workers} workers of {each} each; the run would wait for it"


def room_in_cluster(nodes: Sequence[Mapping[str, float]], *, num_cpus: float, num_gpus: float) -> int:
    """Return how many actors fit on nodes with these resources; an actor is on one node, and its GPU share on one GPU."""

    def on_node(node: Mapping[str, float]) -> int:
        found = int(node.get("CPU", 0.0) / num_cpus + 1e-9)
        if not num_gpus:
            return found
        gpus = node.get("GPU", 0.0)
        return min(found, int(gpus) * int(1 / num_gpus + 1e-9) if num_gpus < 1 else int(gpus / num_gpus + 1e-9))

    return sum(map(on_node, nodes))
