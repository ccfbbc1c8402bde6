"""All that a training run is told, as one tree of data; importable without torch.

from windlass import train

def recipe() -> train.Recipe:
    return train.Recipe(
        name="first",
        model=train.preset("llama-1m"),
        data=train.DataConfig(sources=(train.SourceConfig(path=("text/*.jsonl",)),), batch_tokens=16_384),
        duration=train.Duration.steps(100),
    )
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from windlass.config import Doc, Finding, Name, Range
from windlass.train.callbacks.config import CallbackConfig
from windlass.train.checkpoint.config import CheckpointConfig
from windlass.train.data.config import DataConfig
from windlass.train.duration import Duration
from windlass.train.model.config import ModelConfig
from windlass.train.optim.config import AdamWConfig, CosineConfig, LionConfig, MuonConfig, ScheduleConfig
from windlass.train.optim.schedule_check import schedule_findings
from windlass.train.parallel.config import ParallelConfig

__all__ = ["LossConfig", "Recipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Cross-entropy over all tokens of the global batch that count, summed and divided by their number."""

    z_loss: Annotated[float, Range(min=0), Doc("Weight of the squared log normaliser. Source: PaLM, section 5.")] = 0.0
    kind: Annotated[
        Literal["auto", "plain", "chunked"], Doc("chunked: never hold all logits; auto: where that is faster.")
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A training run."""

    name: Annotated[str, Name(), Doc("Of the run: folders and trackers carry it.")]
    model: Annotated[ModelConfig, Doc("The decoder: a preset's name, or its parts.")]
    data: Annotated[DataConfig, Doc("What it learns from.")]
    duration: Annotated[Duration, Doc("Length of the run; schedules end there.")]
    stop: Annotated[Duration | None, Doc("Leave earlier, with schedules unchanged.")] = None
    optim: Annotated[AdamWConfig | LionConfig | MuonConfig, Doc("The optimiser.")] = AdamWConfig()
    schedule: Annotated[ScheduleConfig, Doc("The learning rate over time.")] = CosineConfig()
    loss: Annotated[LossConfig, Doc("What is minimised.")] = LossConfig()
    parallel: Annotated[ParallelConfig, Doc("How the model is spread.")] = ParallelConfig()
    checkpoint: Annotated[CheckpointConfig, Doc("When state is kept.")] = CheckpointConfig()
    callbacks: Annotated[Mapping[str, CallbackConfig], Doc("What hangs on the trainer, by name.")] = field(
        default_factory=dict
    )
    seed: Annotated[int, Range(min=0), Doc("Of weights, data order and everything random.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Doc("auto: a GPU where there is one.")] = "auto"
    collect_every: Annotated[int, Range(min=1), Doc("Steps between reductions of metrics over processes.")] = 10
    no_checkpoints: Annotated[bool, Doc("Write none: for benchmarks.")] = False
    no_evals: Annotated[bool, Doc("Evaluate nothing: for benchmarks.")] = False
    stop_on_nan: Annotated[bool, Doc("End with an error when the loss is no number.")] = True

    def check(self) -> Iterator[Finding]:
        """What no single part can see."""
        if self.data.sequence_length > self.model.max_length:
            message = f"rows of {self.data.sequence_length} tokens are longer than the model's {self.model.max_length}"
            yield "data.sequence_length", message, "shape-conflict", "lower it, or raise `model.max_length`"
        saving = self.callbacks.get("checkpointer")
        if saving is not None and saving.kind != "python":
            message = f"a callback of kind {saving.kind} named `checkpointer` stands where checkpoints are written"
            yield "callbacks.checkpointer", message, "callback-name-taken", "take another name; `checkpoint` says when"
        yield from schedule_findings(self.schedule, self.duration, self.data.batch_tokens)
