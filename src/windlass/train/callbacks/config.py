"""Callback settings in a recipe, as data; importable without torch.

A recipe's `callbacks` maps names that the user chooses to one of these. The mandatory ones (console, speed,
garbage, checkpointer) are always added; list one to change its settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, OneOrMany, Range
from windlass.core.phrases import count
from windlass.train.data.config import AnySource
from windlass.train.duration import Duration
from windlass.train.targets.config import TargetConfig

__all__ = [
    "AbsentConfig",
    "BatchSizeConfig",
    "CallbackConfig",
    "CometConfig",
    "ConsoleConfig",
    "DownstreamConfig",
    "GarbageConfig",
    "GradientsConfig",
    "JsonLinesConfig",
    "LMEvalConfig",
    "MemoryConfig",
    "ProfilerConfig",
    "PythonConfig",
    "ReportConfig",
    "SequenceLengthConfig",
    "SpeedConfig",
    "TensorBoardConfig",
    "WandbConfig",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    enabled: Annotated[bool, Doc("Whether the callback is used.")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig(_Common):
    """Progress and chosen metrics on the terminal."""

    kind: Literal["console"] = "console"
    every: Annotated[int, Range(min=1), Doc("Number of steps between lines.")] = 10
    metrics: Annotated[tuple[str, ...], Doc("Globs for the names of metrics to print.")] = (
        "train/loss",
        "optim/lr",
        "optim/grad_norm",
        "speed/tokens_per_s",
        "speed/mfu",
        "eval/*",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedConfig(_Common):
    """Tokens per second, fraction of the device's peak (MFU), and time spent waiting for data."""

    kind: Literal["speed"] = "speed"
    peak_tflops: Annotated[
        float | None, Range(above=0), Doc("Peak TFLOPS of one device; if null, looked up by the device's name.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageConfig(_Common):
    """Python garbage collection at the same step on all processes."""

    kind: Literal["garbage"] = "garbage"
    every: Annotated[int, Range(min=1), Doc("Number of steps between collections.")] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsConfig(_Common):
    """Per-parameter norms of gradients and weights, and deviation of the loss and norm from recent steps."""

    kind: Literal["gradients"] = "gradients"
    every: Annotated[int, Range(min=1), Doc("Number of steps between measurements.")] = 100
    match: Annotated[tuple[str, ...], OneOrMany(), Doc("Globs for parameter names.")] = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig(_Common):
    """Peak memory of the device, retries of its allocator, and resident memory."""

    kind: Literal["memory"] = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerConfig(_Common):
    """Trace file that covers some steps, for viewing in Perfetto."""

    kind: Literal["profiler"] = "profiler"
    start: Annotated[
        int, Range(min=0), Doc("Number of steps before the trace, counted from the start of this process.")
    ] = 5
    steps: Annotated[int, Range(min=1), Doc("Number of steps in the trace.")] = 3
    ranks: Annotated[tuple[int, ...], Doc("Ranks that write a trace.")] = (0,)
    has_memory: Annotated[bool, Doc("Trace memory too.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LMEvalConfig(_Common):
    """Loss and perplexity on held-out sources."""

    kind: Literal["lm-eval"] = "lm-eval"
    sources: Annotated[dict[str, AnySource], Doc("Sources by name; each adds a metric `eval/NAME/loss`.")]
    every: Annotated[Duration | None, Doc("Length between evaluations; if null, evaluate only at the end.")] = Duration(
        value=1000, unit="steps"
    )
    max_tokens: Annotated[
        int | None, Range(min=1), Doc("Number of batches from each source; if null, all of them.")
    ] = None
    at_start: Annotated[bool, Doc("Evaluate before the first step too.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamConfig(_Common):
    """Evaluation on tasks from lm-evaluation-harness."""

    kind: Literal["downstream"] = "downstream"
    tasks: Annotated[tuple[str, ...], OneOrMany(), Doc("Names of tasks in lm-evaluation-harness.")]
    every: Annotated[Duration | None, Doc("Length between evaluations; if null, evaluate only at the end.")] = None
    num_fewshot: Annotated[int, Range(min=0), Doc("Number of examples in the prompt.")] = 0
    limit: Annotated[int | None, Range(min=1), Doc("Number of documents from each task; if null, all of them.")] = None
    include: Annotated[str, Doc("Folder that contains custom tasks.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeConfig(_Common):
    """Batch size schedule; the learning rate can grow with the square root of the batch size."""

    kind: Literal["batch-size"] = "batch-size"
    at: Annotated[tuple[Duration, ...], Doc("Points in training at which the value changes.")]
    tokens: Annotated[tuple[int, ...], Doc("Batch size from each of these points on.")]
    scale_lr: Annotated[
        bool, Doc("Multiply the learning rate by the square root of the factor by which the batch grows.")
    ] = False

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        yield from _moment_findings("tokens", self.at, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengthConfig(_Common):
    """Sequence length schedule: rows start short, but a batch keeps its number of tokens."""

    kind: Literal["sequence-length"] = "sequence-length"
    at: Annotated[tuple[Duration, ...], Doc("Points in training at which the value changes.")]
    lengths: Annotated[
        tuple[int, ...], Doc("Tokens per row from each of these points on; each value must divide the full length.")
    ]

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        yield from _moment_findings("lengths", self.at, self.lengths)


def _moment_findings(name: str, at: Sequence[Duration], values: Sequence[int]) -> Iterator[Diagnostic]:
    """Yield problems with `at` and the values; `name` is the field that holds the values."""
    if len(at) != len(values):
        message = f"{count(len(at), 'moment')} for {len(values)} {name}"
        yield "at", message, "invalid-value", f"give `at` and `{name}` the same number of values"
    for place, value in enumerate(values):
        if value < 1:
            yield f"{name}.{place}", f"{value} is below 1", "invalid-value", "write a whole number above 0"
    for place, (one, two) in enumerate(pairwise(at), start=1):
        if one.unit == two.unit and two.value <= one.value:
            yield f"at.{place}", f"{two} is not after {one}", "invalid-value", "write moments in ascending order"


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig(_Common):
    """Weights & Biases."""

    kind: Literal["wandb"] = "wandb"
    project: Annotated[str, Doc("Name of the project.")] = ""
    entity: Annotated[str, Doc("Name of the team or user.")] = ""
    tags: Annotated[tuple[str, ...], OneOrMany(), Doc("Tags of the run.")] = ()
    cancel_tags: Annotated[tuple[str, ...], OneOrMany(), Doc("Tag that stops the run when you add it in W&B.")] = (
        "cancel",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CometConfig(_Common):
    """Comet."""

    kind: Literal["comet"] = "comet"
    project: Annotated[str, Doc("Name of the project.")] = ""
    workspace: Annotated[str, Doc("Name of the workspace.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBoardConfig(_Common):
    """Event files for TensorBoard."""

    kind: Literal["tensorboard"] = "tensorboard"
    folder: Annotated[str, Doc("Folder for the files; if empty, `tensorboard` beside the checkpoints.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesConfig(_Common):
    """File with one JSON object per step; resumed runs continue it without duplicate steps."""

    kind: Literal["jsonl"] = "jsonl"
    path: Annotated[str, Doc("Path of the file; if empty, `metrics.jsonl` beside the checkpoints.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig(_Common):
    """Metrics and progress for windlass, if the run was launched by it."""

    kind: Literal["report"] = "report"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig(_Common, TargetConfig):
    """Callback of your own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentConfig:
    """Disabled callback: a name whose only setting is `enabled: false`."""

    BARE: ClassVar[Mapping[str, object]] = {"enabled": False}

    kind: Literal["absent"] = "absent"
    enabled: Annotated[Literal[False], Doc("Always false.")] = False


CallbackConfig: TypeAlias = (
    ConsoleConfig
    | SpeedConfig
    | GarbageConfig
    | GradientsConfig
    | MemoryConfig
    | ProfilerConfig
    | LMEvalConfig
    | DownstreamConfig
    | BatchSizeConfig
    | SequenceLengthConfig
    | WandbConfig
    | CometConfig
    | TensorBoardConfig
    | JsonLinesConfig
    | ReportConfig
    | PythonConfig
    | AbsentConfig
)
