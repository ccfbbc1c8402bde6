"""Settings for parallelism, that is, how a model is distributed over processes; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, Range

__all__ = [
    "BudgetCheckpointing",
    "Float8Config",
    "FullCheckpointing",
    "ParallelConfig",
    "PipelineConfig",
    "SelectiveCheckpointing",
    "StrictConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullCheckpointing:
    """Activations of every N-th block are recomputed in the backward pass; only the block's input is kept."""

    kind: Literal["full"] = "full"
    every: Annotated[int, Range(min=1), Doc("Recompute every N-th block.")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveCheckpointing:
    """Outputs of costly operations (matrix products, attention) are kept; the rest is recomputed."""

    kind: Literal["selective"] = "selective"
    keep_every: Annotated[int, Range(min=1), Doc("Keep every N-th matrix product.")] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetCheckpointing:
    """Compiler's choice of what to keep within a fraction of memory; needs `compile`."""

    kind: Literal["budget"] = "budget"
    share: Annotated[float, Range(min=0, max=1), Doc("Fraction of the memory that keeping everything would need.")] = (
        0.5
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Blocks distributed over pipeline stages."""

    stages: Annotated[int, Range(min=1), Doc("Number of process groups that hold different blocks.")] = 1
    schedule: Annotated[
        Literal["gpipe", "1f1b", "interleaved", "zero-bubble"], Doc("Order of forward and backward passes.")
    ] = "1f1b"
    num_microbatches: Annotated[
        int | None,
        Range(min=1),
        Doc("Microbatches per process; if null, two per stage, or as implied by `data.microbatch_tokens`."),
    ] = None

    @property
    def num_groups_each(self) -> int:
        """Number of groups of neighbouring blocks that each process holds."""
        return 2 if self.schedule in {"interleaved", "zero-bubble"} and self.stages > 1 else 1

    @property
    def num_groups(self) -> int:
        """Number of groups of neighbouring blocks in all stages."""
        return self.stages * self.num_groups_each

    def microbatches_of(self, num_rows: int, rows_at_once: int) -> int:
        """Return the number of microbatches for a number of rows, given the most rows in a microbatch."""
        return self.num_microbatches or max(2 * self.stages, num_rows // rows_at_once)

    def misfit(self, num_rows: int, num_microbatches: int) -> str:
        """Return why the schedule cannot run this number of microbatches, or an empty string if it can."""
        if num_rows % num_microbatches:
            return f"{num_rows} rows of a process are not divisible by {num_microbatches}"
        if self.schedule == "1f1b" and num_microbatches < self.stages:
            return f"{num_microbatches} are fewer than the {self.stages} stages of the schedule 1f1b"
        rounds = max(1, num_microbatches // self.stages)
        if self.num_groups_each > 1 and num_microbatches % rounds:
            return f"the schedule {self.schedule} cannot cut {num_microbatches} into {rounds} rounds of {self.stages} stages"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Config:
    """Matrix products in float8 through torchao; needs a GPU that supports them."""

    recipe: Annotated[Literal["tensorwise", "rowwise"], Doc("Granularity of the scales.")] = "tensorwise"
    skip: Annotated[tuple[str, ...], Doc("Globs for the names of modules to leave unconverted.")] = ("head",)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictConfig:
    """Bit-identical weights for any number of processes that divides `shards`; slower."""

    shards: Annotated[
        int,
        Range(min=1),
        Doc("Number of parts of a batch, a power of two, whose gradients are summed in a fixed tree."),
    ] = 4

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.shards & (self.shards - 1):
            yield "shards", f"shards {self.shards} is not a power of two", "invalid-value", "write 1, 2, 4, 8, ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Sizes of the mesh, precision and recomputation.

    They are applied in a fixed order.
    """

    data: Annotated[
        Literal["auto", "ddp", "fsdp", "hsdp"],
        Doc("How data-parallel processes share weights; `auto` uses ddp below 1e9 parameters, else fsdp."),
    ] = "auto"
    replicas: Annotated[int, Range(min=1), Doc("Number of groups that each hold a whole model; for hsdp.")] = 1
    tensor: Annotated[int, Range(min=1), Doc("Number of processes that split each matrix.")] = 1
    context: Annotated[
        int, Range(min=1), Doc("Number of processes that split each sequence (unproven on hardware).")
    ] = 1
    expert: Annotated[int, Range(min=1), Doc("Number of processes that split the experts (unproven on hardware).")] = 1
    pipeline: Annotated[PipelineConfig, Doc("Pipeline stages (unproven on hardware).")] = PipelineConfig()
    precision: Annotated[
        Literal["float32", "bfloat16"],
        Doc("Data type of activations and gathered weights; master weights are float32."),
    ] = "float32"
    reduce: Annotated[Literal["float32", "bfloat16"], Doc("Data type in which gradients are summed.")] = "float32"
    checkpointing: Annotated[
        FullCheckpointing | SelectiveCheckpointing | BudgetCheckpointing | None,
        Doc("Activation checkpointing (recomputation)."),
    ] = None
    compile: Annotated[bool, Doc("Compile each block with torch.compile.")] = False
    float8: Annotated[Float8Config | None, Doc("Matrix products in float8 (unproven on hardware).")] = None
    strict: Annotated[StrictConfig | None, Doc("Produce bit-identical results on any number of processes.")] = None

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if isinstance(self.checkpointing, BudgetCheckpointing) and not self.compile:
            message = "a checkpointing budget needs the compiler, but `compile` is off"
            yield "checkpointing", message, "setting-unused", "set `compile: true`, or choose kind `selective`"
        if self.compile and self.pipeline.stages > 1 and self.pipeline.schedule == "zero-bubble":
            message = "the schedule zero-bubble splits the backward pass; compiled blocks cannot"
            yield "compile", message, "shape-conflict", "set `compile: false`, or choose the schedule `interleaved`"
        if self.strict is not None and "bfloat16" in {self.precision, self.reduce}:
            message = "strict sums need float32, but bfloat16 is set"
            yield "strict", message, "shape-conflict", "set `precision: float32` and `reduce: float32`"
