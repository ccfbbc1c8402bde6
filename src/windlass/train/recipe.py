"""Recipe for a training run, as one tree of data; importable without torch.

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
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from windlass.config.annotations import Diagnostic, Doc, Name, Range
from windlass.train.callbacks.config import CallbackConfig
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.data.config import AnyData
from windlass.train.duration import Duration
from windlass.train.model.config import LoRAConfig, ModelConfig, StoredAdapter
from windlass.train.optim.config import AdamWConfig, LossConfig, OptimConfig
from windlass.train.optim.schedule_check import schedule_findings
from windlass.train.optim.schedule_config import AnySchedule, CosineConfig, ScheduleTarget
from windlass.train.parallel.config import ParallelConfig
from windlass.train.targets.config import ModelTarget, ModuleTarget

__all__ = ["Recipe"]


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
    """OLMo-core's names of some settings; a recipe that uses one gets a hint with our name."""

    HEAD: ClassVar[Literal["vocabulary", "scalar"]] = "vocabulary"
    """Head of the model that this class of recipes trains."""

    BASE_KEY: ClassVar[str] = "checkpoint.load.path"
    """Setting that names the model to start from."""

    BUILDER: ClassVar[str] = ""
    """`module:function` that builds the trainer of this class of recipes; empty: `train.build`."""

    name: Annotated[str, Name(), Doc("Name of the run, used for folders and in trackers.")]
    model: Annotated[ModelConfig | ModelTarget, Doc("Model: a preset's name, a decoder's settings, or custom code.")]
    data: Annotated[AnyData, Doc("Training data.")]
    duration: Annotated[Duration, Doc("Length of the run, and default length of schedules.")]
    stop: Annotated[Duration | None, Doc("Point at which to stop earlier, without changing the schedules.")] = None
    adapter: Annotated[
        LoRAConfig | StoredAdapter | None,
        Doc("Adapter to train beside the frozen model; if null, all of it is trained."),
    ] = None
    train_module: Annotated[
        ModuleTarget | None, Doc("Training module; if null, the one for next-token prediction.")
    ] = None
    optim: Annotated[OptimConfig, Doc("Settings of the optimiser.")] = AdamWConfig()
    schedule: Annotated[AnySchedule, Doc("Learning-rate schedule.")] = CosineConfig()
    loss: Annotated[LossConfig, Doc("Loss to minimise.")] = LossConfig()
    parallel: Annotated[ParallelConfig, Doc("Distribution of the model over processes.")] = ParallelConfig()
    checkpoint: Annotated[CheckpointerConfig, Doc("Where and when to save checkpoints, and how long to keep them.")] = (
        CheckpointerConfig()
    )
    callbacks: Annotated[Mapping[str, CallbackConfig], Doc("Callbacks by name.")] = field(default_factory=dict)
    seed: Annotated[int, Range(min=0), Doc("Seed of weights, data order and all random numbers.")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Doc("Device to train on; `auto` uses a GPU if there is one.")] = (
        "auto"
    )
    collect_every: Annotated[
        int, Range(min=1), Doc("Number of steps between reductions of metrics over processes.")
    ] = 10
    no_checkpoints: Annotated[bool, Doc("Write no checkpoints, for benchmarks.")] = False
    no_evals: Annotated[bool, Doc("Skip evaluation, for benchmarks.")] = False
    stop_on_nan: Annotated[bool, Doc("Fail if the loss is NaN or infinite.")] = True

    def settled(self) -> Recipe:
        """Return the recipe with everything that is read from files, such as the settings of a stored adapter.

        Raises:
            SpecError: a file cannot be read.
        """
        if not isinstance(self.adapter, StoredAdapter) or not isinstance(self.model, ModelConfig):
            return self
        from windlass.train.hf.sources import adapter_config_of  # lazy: torch costs 2 s

        return replace(self, adapter=adapter_config_of(self.adapter, self.model))

    @property
    def base_path(self) -> str:
        """Path of the model that an adapter is trained beside; empty if there is none."""
        return self.checkpoint.load.path

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several parts."""
        longest = self.model.max_length if isinstance(self.model, ModelConfig) else None
        if longest is not None and self.data.sequence_length > longest:
            message = f"rows of {self.data.sequence_length} tokens are longer than the model's {longest}"
            yield "data.sequence_length", message, "shape-conflict", "lower it, or raise `model.max_length`"
        if isinstance(self.model, ModelConfig) and self.model.head != self.HEAD:
            message = f"this recipe trains a model with a {self.HEAD} head; `model.head` is {self.model.head}"
            yield "model.head", message, "shape-conflict", f"write `model.head={self.HEAD}`"
        saving = self.callbacks.get("checkpointer")
        if saving is not None and saving.kind == "absent":
            message = "the checkpointer cannot be disabled by its name"
            yield "callbacks.checkpointer", message, "invalid-value", "set `no_checkpoints: true`"
        elif saving is not None and saving.kind != "python":
            message = f"a callback of kind {saving.kind} named `checkpointer` would replace the checkpointer"
            yield (
                "callbacks.checkpointer",
                message,
                "already-exists",
                "use another name; `checkpoint` configures checkpoints",
            )
        for name, length in (("duration", self.duration), ("stop", self.stop)):
            if length is not None and length.value == 0:
                message = f"invalid `{name}` `{length}`: nothing would be trained"
                yield name, message, "invalid-value", f"write at least 1, such as `{name}=1step`"
        if self.adapter is not None:
            yield from self._check_adapter()
        if not isinstance(self.schedule, ScheduleTarget):
            yield from schedule_findings(self.schedule, self.duration, self.data.batch_tokens)

    def _check_adapter(self) -> Iterator[Diagnostic]:
        if not self.base_path:
            message = "an adapter needs a trained model beside it, and the recipe names none"
            yield "adapter", message, "missing-key", f"set `{self.BASE_KEY}` to a checkpoint or `hf:PATH`"
        for name, is_set in (
            ("model.target", isinstance(self.model, ModelTarget)),
            ("train_module", self.train_module is not None),
            ("parallel.tensor", self.parallel.tensor > 1),
            ("parallel.expert", self.parallel.expert > 1),
            ("parallel.pipeline.stages", self.parallel.pipeline.stages > 1),
            ("parallel.float8", self.parallel.float8 is not None),
            ("parallel.strict", self.parallel.strict is not None),
            ("checkpoint.load.optim", self.checkpoint.load.optim is True),
            ("checkpoint.load.trainer", self.checkpoint.load.trainer is True),
            ("checkpoint.load.is_strict", not self.checkpoint.load.is_strict),
        ):
            if is_set:
                yield name, f"`{name}` is not supported with an adapter", "setting-unused", "remove it, or `adapter`"
