"""Plan of a recipe on a number of processes: sizes, lengths, memory, time and problems. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from windlass.core.errors import SpecError, WindlassError
from windlass.train.data.config import DataConfig
from windlass.train.data.facts import DataFacts, describe
from windlass.train.model.config import ModelConfig
from windlass.train.model.flops import ParameterCounts
from windlass.train.parallel.mesh import MeshShape
from windlass.train.plan.checks import checked_shape
from windlass.train.plan.figures import figures_of
from windlass.train.plan.length import Length, run_length, steps_of
from windlass.train.plan.machine import GPUS, MachineSpec
from windlass.train.plan.memory import MemoryEstimate, memory_of, rows_at_once, state_bytes
from windlass.train.plan.warnings import warnings_of
from windlass.train.recipe import Recipe

__all__ = [
    "Applied",
    "CheckpointEstimate",
    "DataEstimate",
    "SpeedEstimate",
    "TrainPlan",
    "data_of",
    "data_warnings",
    "plan_recipe",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataEstimate:
    """Size of the mixture, counted or estimated, or why it is unknown.

    Attributes:
        note: why it is unknown, such as data on another machine; empty if `facts` is set.
    """

    note: str = ""
    facts: DataFacts | None = None


def data_of(recipe: Recipe, vocab_size: int | None) -> DataEstimate:
    """Read manifests and file sizes.

    Missing data is not an error, since plans are made on any machine.
    """
    if not isinstance(recipe.data, DataConfig):
        return DataEstimate(note=f"{recipe.data.target} gives it")
    if vocab_size is None:
        return DataEstimate(note="unknown vocabulary size of the model")
    try:
        return DataEstimate(facts=describe(recipe.data, vocab_size=vocab_size))
    except SpecError as error:
        return DataEstimate(note="; ".join(problem.message for problem in error.problems))
    except (WindlassError, OSError) as error:
        return DataEstimate(note=str(error))


def data_warnings(recipe: Recipe, data: DataEstimate, vocab_size: int | None) -> Iterator[str]:
    """Yield warnings about data that a run would reject or detect late."""
    for source in () if data.facts is None else data.facts.sources:
        if source.max_id is not None and vocab_size is not None and source.max_id >= vocab_size:
            name = "model.vocab_size" if isinstance(recipe.model, ModelConfig) else "the model's vocabulary"
            yield f"{source.name} has token {source.max_id}, but {name} is {vocab_size}"


_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Speed on a kind of GPU, at the given fraction of its peak.

    Attributes:
        memory_share: share of a GPU's memory that a process needs.
        tokens_per_s: tokens per second of all processes together.
        hours: duration of the run; None if its length is unknown.
    """

    gpu: str
    memory_share: float
    tokens_per_s: float
    hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEstimate:
    """Size and number of checkpoints.

    Attributes:
        bytes_each: weights and the optimiser's state, all processes together.
        num_permanent: number of permanent checkpoints, including the last; None if the run's length is unknown.
    """

    bytes_each: int
    num_permanent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """Result of applying the plan to a model without weights, or why it was not applied.

    Attributes:
        note: why it was not applied; empty if it was.
        facts: counts by name, from the parallel package.
    """

    note: str = ""
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """Cost of a recipe on a number of processes."""

    name: str
    machine: MachineSpec
    shape: MeshShape
    parameters: ParameterCounts
    flops_per_token: float
    length: Length
    sequence_length: int
    batch_tokens: int
    data: DataEstimate
    rows_at_once: int
    microbatches: int
    memory: MemoryEstimate
    checkpoints: CheckpointEstimate
    speeds: tuple[SpeedEstimate, ...]
    applied: Applied
    warnings: tuple[str, ...]

    @property
    def flops(self) -> float | None:
        """FLOPs of the whole run."""
        return None if self.length.tokens is None else self.flops_per_token * self.length.tokens

    def to_data(self) -> dict[str, object]:
        """Return the plan as JSON-safe data."""
        return {**asdict(self), "flops": self.flops, "memory_total_bytes": self.memory.total}


def plan_recipe(recipe: Recipe, machine: MachineSpec, *, apply: bool = True) -> TrainPlan:
    """Compute the cost of a recipe on a machine.

    Args:
        apply: if torch is installed, also apply the parallel plan to a model without weights, with that many fake
            processes; takes seconds.

    Raises:
        SpecError: shapes do not divide; reports all of them.
    """
    recipe = recipe.settled()
    figures = figures_of(recipe)
    shape = checked_shape(recipe, machine.world, num_parameters=figures.counts.total)
    memory = memory_of(recipe, shape, figures.counts)
    data = data_of(recipe, figures.vocab_size)
    length = run_length(recipe, data.facts)
    each = figures.flops_per_token
    at_once = rows_at_once(recipe, shape)
    rows = recipe.data.batch_tokens // recipe.data.sequence_length
    gpus = [machine.gpu] if machine.gpu else list(GPUS)
    return TrainPlan(
        name=recipe.name,
        machine=machine,
        shape=shape,
        parameters=figures.counts,
        flops_per_token=each,
        length=length,
        sequence_length=recipe.data.sequence_length,
        batch_tokens=recipe.data.batch_tokens,
        data=data,
        rows_at_once=at_once,
        microbatches=max(1, rows // shape.data_parallel // at_once),
        memory=memory,
        checkpoints=_checkpoints(recipe, length, data, figures.counts),
        speeds=tuple(_speed(gpu, recipe, machine, memory, each, length) for gpu in gpus),
        applied=_applied(recipe, machine) if apply else Applied(note="not requested", facts={}),
        warnings=(
            *warnings_of(recipe, machine, shape, memory, length, figures),
            *data_warnings(recipe, data, figures.vocab_size),
        ),
    )


def _checkpoints(recipe: Recipe, length: Length, data: DataEstimate, counts: ParameterCounts) -> CheckpointEstimate:
    bytes_each = 4 * counts.trained + state_bytes(recipe, counts)
    settings = recipe.checkpoint
    if recipe.no_checkpoints:
        return CheckpointEstimate(bytes_each=bytes_each, num_permanent=0)
    every = None if settings.every is None else steps_of(settings.every, recipe, data.facts)
    if length.steps is None or length.is_bound or (settings.every is not None and every is None):
        return CheckpointEstimate(bytes_each=bytes_each, num_permanent=settings.keep)
    count = 1 if not every else -(-length.steps // every)
    return CheckpointEstimate(bytes_each=bytes_each, num_permanent=min(count, settings.keep or count))


def _speed(
    gpu: str, recipe: Recipe, machine: MachineSpec, memory: MemoryEstimate, each: float, length: Length
) -> SpeedEstimate:
    kind = GPUS[gpu]
    rate = machine.world * kind.peak_flops(recipe.parallel.precision) * machine.mfu / each
    hours = None if length.tokens is None else length.tokens / rate / _SECONDS_PER_HOUR
    return SpeedEstimate(gpu=gpu, memory_share=memory.total / kind.memory_bytes, tokens_per_s=rate, hours=hours)


def _applied(recipe: Recipe, machine: MachineSpec) -> Applied:
    from importlib.util import find_spec  # lazy: only needed to apply a plan

    if find_spec("torch") is None:
        return Applied(note="torch is not installed", facts={})
    from windlass.train.parallel.dry import dry_apply_recipe  # lazy: torch costs seconds

    return Applied(facts=dry_apply_recipe(recipe, machine.world))
