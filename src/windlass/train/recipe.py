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
from typing import Annotated, ClassVar, Literal

from windlass.config import Diagnostic, Doc, Name, Range
from windlass.train.callbacks.config import CallbackConfig
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.data.config import AnyData
from windlass.train.duration import Duration
from windlass.train.model.config import ModelConfig
from windlass.train.optim.config import AdamWConfig, OptimConfig
from windlass.train.optim.schedule_check import schedule_findings
from windlass.train.optim.schedule_config import AnySchedule, CosineConfig, ScheduleTarget
from windlass.train.parallel.config import ParallelConfig
from windlass.train.targets.config import ModelTarget, ModuleTarget

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

    FOREIGN_KEYS: ClassVar[Mapping[str, str]] = {
        "trainer.hard_stop": "stop",
        "trainer.max_duration": "duration",
        "trainer.save_folder": "checkpoint.folder",
        "trainer.load_path": "checkpoint.load.path",
        "trainer.load_strategy": "checkpoint.load.strategy",
        "trainer.metrics_collect_interval": "collect_every",
        "trainer.no_checkpoints": "no_checkpoints",
        "trainer.no_evals": "no_evals",
        "trainer.callbacks": "callbacks",
        "train_module.optim": "optim",
        "train_module.scheduler": "schedule",
        "train_module.max_grad_norm": "optim.max_grad_norm",
        "train_module.max_sequence_length": "model.max_length",
        "train_module.rank_microbatch_size": "data.microbatch_tokens",
        "train_module.z_loss_multiplier": "loss.z_loss",
        "data_loader.global_batch_size": "data.batch_tokens",
        "data_loader.seed": "data.seed",
        "dataset.sequence_length": "data.sequence_length",
        "dataset.tokenizer": "data.tokenizer",
        "init_seed": "seed",
    }
    """What OLMo-core calls some of these; a recipe that names one is told ours."""

    name: Annotated[str, Name(), Doc("Of the run: folders and trackers carry it.")]
    model: Annotated[ModelConfig | ModelTarget, Doc("The decoder: a preset's name, or its parts; or one of your own.")]
    data: Annotated[AnyData, Doc("What it learns from.")]
    duration: Annotated[Duration, Doc("Length of the run; schedules end there.")]
    stop: Annotated[Duration | None, Doc("Leave earlier, with schedules unchanged.")] = None
    train_module: Annotated[ModuleTarget | None, Doc("What is done with a batch; null: next tokens are predicted.")] = (
        None
    )
    optim: Annotated[OptimConfig, Doc("The optimiser.")] = AdamWConfig()
    schedule: Annotated[AnySchedule, Doc("The learning rate over time.")] = CosineConfig()
    loss: Annotated[LossConfig, Doc("What is minimised.")] = LossConfig()
    parallel: Annotated[ParallelConfig, Doc("How the model is spread.")] = ParallelConfig()
    checkpoint: Annotated[CheckpointerConfig, Doc("When state is kept.")] = CheckpointerConfig()
    callbacks: Annotated[Mapping[str, CallbackConfig], Doc("What hangs on the trainer, by name.")] = field(
        default_factory=dict
    )
    seed: Annotated[int, Range(min=0), Doc("Of weights, data order and everything random.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Doc("auto: a GPU where there is one.")] = "auto"
    collect_every: Annotated[int, Range(min=1), Doc("Steps between reductions of metrics over processes.")] = 10
    no_checkpoints: Annotated[bool, Doc("Write none: for benchmarks.")] = False
    no_evals: Annotated[bool, Doc("Evaluate nothing: for benchmarks.")] = False
    stop_on_nan: Annotated[bool, Doc("End with an error when the loss is no number.")] = True

    def check(self) -> Iterator[Diagnostic]:
        """What no single part can see."""
        longest = self.model.max_length if isinstance(self.model, ModelConfig) else None
        if longest is not None and self.data.sequence_length > longest:
            message = f"rows of {self.data.sequence_length} tokens are longer than the model's {longest}"
            yield "data.sequence_length", message, "shape-conflict", "lower it, or raise `model.max_length`"
        saving = self.callbacks.get("checkpointer")
        if saving is not None and saving.kind == "absent":
            message = "the callback that writes checkpoints cannot be left out by its name"
            yield "callbacks.checkpointer", message, "wrong-value", "write `no_checkpoints: true`"
        elif saving is not None and saving.kind != "python":
            message = f"a callback of kind {saving.kind} named `checkpointer` stands where checkpoints are written"
            yield "callbacks.checkpointer", message, "callback-name-taken", "take another name; `checkpoint` says when"
        for name, length in (("duration", self.duration), ("stop", self.stop)):
            if length is not None and length.value == 0:
                message = f"`{name}` is `{length}`, which trains nothing"
                yield name, message, "out-of-range", f"write at least 1, such as `{name}=1step`"
        if not isinstance(self.schedule, ScheduleTarget):
            yield from schedule_findings(self.schedule, self.duration, self.data.batch_tokens)
