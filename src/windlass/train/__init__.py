"""Trainer for transformer language models, or any module with a loss, on PyTorch's own parallelism.

    windlass train llama-1m data.sources='[{path: text.txt}]' stop=100steps

or from Python, with or without a windlass launch:

    from windlass import train

    trainer = train.Trainer(module, loader, duration=train.Duration.steps(100))
    trainer.fit()

Importing this package does not import torch: recipes are plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.train.batch import IGNORE, Batch
    from windlass.train.build import build_trainer
    from windlass.train.callbacks.checkpointer import Checkpointer
    from windlass.train.callbacks.config import (
        BatchSizeConfig,
        CometConfig,
        ConsoleConfig,
        DownstreamConfig,
        GarbageConfig,
        GradientsConfig,
        JsonLinesConfig,
        LMEvalConfig,
        MemoryConfig,
        ProfilerConfig,
        PythonConfig,
        ReportConfig,
        SequenceLengthConfig,
        SpeedConfig,
        TensorBoardConfig,
        WandbConfig,
    )
    from windlass.train.callbacks.console import Console
    from windlass.train.callbacks.garbage import Garbage
    from windlass.train.callbacks.gradients import Gradients
    from windlass.train.callbacks.memory import Memory
    from windlass.train.callbacks.profiler import Profiler
    from windlass.train.callbacks.protocol import TrainerCallback
    from windlass.train.callbacks.report import Report
    from windlass.train.callbacks.schedules import BatchSize, SequenceLength
    from windlass.train.callbacks.speed import Speed
    from windlass.train.callbacks.trackers.comet import Comet
    from windlass.train.callbacks.trackers.json_lines import JsonLines
    from windlass.train.callbacks.trackers.tensorboard import TensorBoard
    from windlass.train.callbacks.trackers.wandb import Wandb
    from windlass.train.checkpoint.config import (
        CheckpointerConfig,
        LoadConfig,
    )
    from windlass.train.checkpoint.dcp_reader import read_dcp
    from windlass.train.checkpoint.store import open_store
    from windlass.train.compare.checkpoints import diff_checkpoints
    from windlass.train.compare.losses import compare_losses
    from windlass.train.data.build import build_loader
    from windlass.train.data.config import DataConfig, LoaderTarget, SourceConfig, SourceTarget, TokenizerConfig
    from windlass.train.data.loader import TokenLoader
    from windlass.train.data.protocol import Loader, NotReady, Share
    from windlass.train.duration import Duration
    from windlass.train.errors import CheckpointError, TrainingError
    from windlass.train.evaluate.downstream import Downstream, run_tasks
    from windlass.train.evaluate.lm_eval import LMEval, PeriodicEvaluation
    from windlass.train.hf.check import compare_layers
    from windlass.train.hf.convert_weights import import_hf, load_hf
    from windlass.train.hf.import_export import export_hf
    from windlass.train.hf.sources import load_model
    from windlass.train.model.config import (
        AttentionConfig,
        LinearScaling,
        Llama3Scaling,
        ModelConfig,
        MoEConfig,
        RopeConfig,
        YarnScaling,
    )
    from windlass.train.model.decoder import Decoder, LossSums
    from windlass.train.model.flops import count_parameters, flops_per_token
    from windlass.train.model.init import init_weights
    from windlass.train.model.presets import preset
    from windlass.train.modules.basic import BasicModule
    from windlass.train.modules.language import LanguageModule
    from windlass.train.modules.protocol import StepFacts, TrainModule
    from windlass.train.optim.build import build_optimizer, set_lr
    from windlass.train.optim.config import (
        AdamWConfig,
        DionConfig,
        GroupConfig,
        LionConfig,
        LossConfig,
        MuonConfig,
        NorMuonConfig,
        OptimTarget,
        SkipConfig,
    )
    from windlass.train.optim.dion import Dion
    from windlass.train.optim.lion import Lion
    from windlass.train.optim.loss import language_loss
    from windlass.train.optim.muon import Muon
    from windlass.train.optim.normuon import NorMuon
    from windlass.train.optim.schedule_config import (
        ConstantConfig,
        CosineConfig,
        ExponentialConfig,
        HalfCosineConfig,
        InverseSqrtConfig,
        LinearConfig,
        PowerConfig,
        ScheduleTarget,
        SequentialConfig,
        WSDConfig,
        WSDSConfig,
    )
    from windlass.train.optim.schedules import ScheduleStep, lr_factor
    from windlass.train.parallel.apply import parallelize
    from windlass.train.parallel.config import (
        BudgetCheckpointing,
        Float8Config,
        FullCheckpointing,
        ParallelConfig,
        PipelineConfig,
        SelectiveCheckpointing,
        StrictConfig,
    )
    from windlass.train.parallel.sync import no_sync
    from windlass.train.parallel.world import World
    from windlass.train.recipe import Recipe
    from windlass.train.resolve import ResolvedRecipe
    from windlass.train.run import run_recipe
    from windlass.train.stopping import StopReason
    from windlass.train.targets.config import ModelTarget, ModuleTarget
    from windlass.train.trainer import Outcome, Trainer
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.train.batch": (
                "IGNORE",
                "Batch",
            ),
            "windlass.train.build": ("build_trainer",),
            "windlass.train.callbacks.checkpointer": ("Checkpointer",),
            "windlass.train.callbacks.schedules": (
                "BatchSize",
                "SequenceLength",
            ),
            "windlass.train.callbacks.trackers.comet": ("Comet",),
            "windlass.train.callbacks.console": ("Console",),
            "windlass.train.callbacks.garbage": ("Garbage",),
            "windlass.train.callbacks.gradients": ("Gradients",),
            "windlass.train.callbacks.trackers.json_lines": ("JsonLines",),
            "windlass.train.callbacks.memory": ("Memory",),
            "windlass.train.callbacks.profiler": ("Profiler",),
            "windlass.train.callbacks.report": ("Report",),
            "windlass.train.callbacks.speed": ("Speed",),
            "windlass.train.callbacks.trackers.tensorboard": ("TensorBoard",),
            "windlass.train.callbacks.trackers.wandb": ("Wandb",),
            "windlass.train.optim.build": (
                "build_optimizer",
                "set_lr",
            ),
            "windlass.train.optim.lion": ("Lion",),
            "windlass.train.optim.dion": ("Dion",),
            "windlass.train.optim.normuon": ("NorMuon",),
            "windlass.train.optim.muon": ("Muon",),
            "windlass.train.optim.loss": ("language_loss",),
            "windlass.train.optim.schedules": (
                "ScheduleStep",
                "lr_factor",
            ),
            "windlass.train.callbacks.protocol": ("TrainerCallback",),
            "windlass.train.compare.checkpoints": ("diff_checkpoints",),
            "windlass.train.compare.losses": ("compare_losses",),
            "windlass.train.evaluate.downstream": (
                "Downstream",
                "run_tasks",
            ),
            "windlass.train.evaluate.lm_eval": (
                "LMEval",
                "PeriodicEvaluation",
            ),
            "windlass.train.hf.check": ("compare_layers",),
            "windlass.train.hf.import_export": ("export_hf",),
            "windlass.train.hf.convert_weights": (
                "import_hf",
                "load_hf",
            ),
            "windlass.train.hf.sources": ("load_model",),
            "windlass.train.data.build": ("build_loader",),
            "windlass.train.checkpoint.dcp_reader": ("read_dcp",),
            "windlass.train.checkpoint.store": ("open_store",),
            "windlass.train.errors": (
                "CheckpointError",
                "TrainingError",
            ),
            "windlass.train.data.config": (
                "SourceTarget",
                "LoaderTarget",
                "DataConfig",
                "SourceConfig",
                "TokenizerConfig",
            ),
            "windlass.train.data.loader": ("TokenLoader",),
            "windlass.train.data.protocol": (
                "Loader",
                "NotReady",
                "Share",
            ),
            "windlass.train.duration": ("Duration",),
            "windlass.train.targets.config": (
                "ModuleTarget",
                "ModelTarget",
            ),
            "windlass.train.optim.config": (
                "NorMuonConfig",
                "DionConfig",
                "OptimTarget",
                "AdamWConfig",
                "GroupConfig",
                "LionConfig",
                "LossConfig",
                "MuonConfig",
                "SkipConfig",
            ),
            "windlass.train.optim.schedule_config": (
                "ScheduleTarget",
                "ConstantConfig",
                "CosineConfig",
                "ExponentialConfig",
                "HalfCosineConfig",
                "InverseSqrtConfig",
                "LinearConfig",
                "PowerConfig",
                "SequentialConfig",
                "WSDConfig",
                "WSDSConfig",
            ),
            "windlass.train.parallel.apply": ("parallelize",),
            "windlass.train.parallel.config": (
                "BudgetCheckpointing",
                "Float8Config",
                "FullCheckpointing",
                "ParallelConfig",
                "PipelineConfig",
                "SelectiveCheckpointing",
                "StrictConfig",
            ),
            "windlass.train.checkpoint.config": (
                "CheckpointerConfig",
                "LoadConfig",
            ),
            "windlass.train.callbacks.config": (
                "BatchSizeConfig",
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
            ),
            "windlass.train.model.config": (
                "AttentionConfig",
                "LinearScaling",
                "Llama3Scaling",
                "ModelConfig",
                "MoEConfig",
                "RopeConfig",
                "YarnScaling",
            ),
            "windlass.train.model.decoder": (
                "Decoder",
                "LossSums",
            ),
            "windlass.train.model.flops": (
                "count_parameters",
                "flops_per_token",
            ),
            "windlass.train.model.init": ("init_weights",),
            "windlass.train.model.presets": ("preset",),
            "windlass.train.modules.basic": ("BasicModule",),
            "windlass.train.modules.language": ("LanguageModule",),
            "windlass.train.modules.protocol": (
                "StepFacts",
                "TrainModule",
            ),
            "windlass.train.parallel.sync": ("no_sync",),
            "windlass.train.parallel.world": ("World",),
            "windlass.train.recipe": ("Recipe",),
            "windlass.train.resolve": ("ResolvedRecipe",),
            "windlass.train.run": ("run_recipe",),
            "windlass.train.stopping": ("StopReason",),
            "windlass.train.trainer": (
                "Outcome",
                "Trainer",
            ),
        },
    )

__all__ = [
    "IGNORE",
    "AdamWConfig",
    "AttentionConfig",
    "BasicModule",
    "Batch",
    "BatchSize",
    "BatchSizeConfig",
    "BudgetCheckpointing",
    "CheckpointError",
    "Checkpointer",
    "CheckpointerConfig",
    "Comet",
    "CometConfig",
    "Console",
    "ConsoleConfig",
    "ConstantConfig",
    "CosineConfig",
    "DataConfig",
    "Decoder",
    "Dion",
    "DionConfig",
    "Downstream",
    "DownstreamConfig",
    "Duration",
    "ExponentialConfig",
    "Float8Config",
    "FullCheckpointing",
    "Garbage",
    "GarbageConfig",
    "Gradients",
    "GradientsConfig",
    "GroupConfig",
    "HalfCosineConfig",
    "InverseSqrtConfig",
    "JsonLines",
    "JsonLinesConfig",
    "LMEval",
    "LMEvalConfig",
    "LanguageModule",
    "LinearConfig",
    "LinearScaling",
    "Lion",
    "LionConfig",
    "Llama3Scaling",
    "LoadConfig",
    "Loader",
    "LoaderTarget",
    "LossConfig",
    "LossSums",
    "Memory",
    "MemoryConfig",
    "MoEConfig",
    "ModelConfig",
    "ModelTarget",
    "ModuleTarget",
    "Muon",
    "MuonConfig",
    "NorMuon",
    "NorMuonConfig",
    "NotReady",
    "OptimTarget",
    "Outcome",
    "ParallelConfig",
    "PeriodicEvaluation",
    "PipelineConfig",
    "PowerConfig",
    "Profiler",
    "ProfilerConfig",
    "PythonConfig",
    "Recipe",
    "Report",
    "ReportConfig",
    "ResolvedRecipe",
    "RopeConfig",
    "ScheduleStep",
    "ScheduleTarget",
    "SelectiveCheckpointing",
    "SequenceLength",
    "SequenceLengthConfig",
    "SequentialConfig",
    "Share",
    "SkipConfig",
    "SourceConfig",
    "SourceTarget",
    "Speed",
    "SpeedConfig",
    "StepFacts",
    "StopReason",
    "StrictConfig",
    "TensorBoard",
    "TensorBoardConfig",
    "TokenLoader",
    "TokenizerConfig",
    "TrainModule",
    "Trainer",
    "TrainerCallback",
    "TrainingError",
    "WSDConfig",
    "WSDSConfig",
    "Wandb",
    "WandbConfig",
    "World",
    "YarnScaling",
    "build_loader",
    "build_optimizer",
    "build_trainer",
    "compare_layers",
    "compare_losses",
    "count_parameters",
    "diff_checkpoints",
    "export_hf",
    "flops_per_token",
    "import_hf",
    "init_weights",
    "language_loss",
    "load_hf",
    "load_model",
    "lr_factor",
    "no_sync",
    "open_store",
    "parallelize",
    "preset",
    "read_dcp",
    "run_recipe",
    "run_tasks",
    "set_lr",
]
