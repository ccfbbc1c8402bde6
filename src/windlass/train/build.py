"""Construction of a trainer from a recipe: cheap checks first, then data, then weights."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn

from windlass import report
from windlass.core.errors import PreconditionError, Problem, SpecError
from windlass.core.phrases import size
from windlass.train.callbacks.build import build_callbacks
from windlass.train.callbacks.console import Compiling
from windlass.train.data.build import build_loader
from windlass.train.data.config import DataConfig, LoaderTarget
from windlass.train.data.protocol import CountsPasses, Loader
from windlass.train.data.tokenization.ingestion import IngestProgress
from windlass.train.evaluate.build import evaluation_makers
from windlass.train.hf.mapped import fill
from windlass.train.hf.sources import adapter_record, open_adapter
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.adapters import add_adapter, check_base, is_of_adapter, num_adapter_weights, sample_base
from windlass.train.model.config import LoRAConfig, ModelConfig, StoredAdapter
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.pipelined import PipelinedModule
from windlass.train.modules.protocol import TrainModule
from windlass.train.modules.trainable import TrainableModel
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.groups import freeze, plain_parameters
from windlass.train.optim.schedule_config import ScheduleConfig, ScheduleTarget
from windlass.train.optim.schedules import Rates, schedule_function
from windlass.train.parallel.apply import parallelize, pipeline_of, replicas_of
from windlass.train.parallel.world import World
from windlass.train.plan.checks import check_parts, plan_misfits
from windlass.train.recipe import Recipe
from windlass.train.reference import load_reference
from windlass.train.resolve import ResolvedRecipe
from windlass.train.targets.config import ModelTarget
from windlass.train.targets.model import build_own_model, form_of, own_vocab_size
from windlass.train.targets.running import build_own_loader, build_own_module
from windlass.train.targets.schedule import own_schedule
from windlass.train.trainer import Trainer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from windlass.train.callbacks.config import CallbackConfig
    from windlass.train.callbacks.protocol import TrainerCallback
    from windlass.train.checkpoint.protocol import CheckpointStore

__all__ = [
    "attach_adapter",
    "build_trainer",
    "building",
    "checkpoint_folder",
    "ensure_folder",
    "open_run_store",
    "removing_if_refused",
    "replicas_of_model",
    "run_callbacks",
    "start_adapter",
]


def checkpoint_folder(folder: str, name: str) -> str:
    """Return the checkpoint folder: the recipe's, else the task's, else one in the working directory."""
    if folder:
        return folder
    return str(report.place().checkpoints) if report.is_active() else str(Path("checkpoints") / name)


def ensure_folder(folder: str, world: World, *, need_bytes: int) -> None:
    """Create the folder and check that a checkpoint fits into it. Collective, idempotent.

    URLs are left to the store.

    Args:
        need_bytes: size of one checkpoint.

    Raises:
        PreconditionError: it is not writable, or has too little space.
    """
    error: PreconditionError | None = None
    if world.is_main and "://" not in folder:
        error = _problem(Path(folder), need_bytes)
    if world.sum_on_host([float(error is not None)])[0] > 0:
        raise error or PreconditionError(f"rank 0 cannot write checkpoints to {folder}", code="checkpoint-folder")


@contextmanager
def removing_if_refused(folder: str, world: World) -> Iterator[None]:
    """Remove the empty folders that this run created for `folder` if building the trainer fails.

    Only rank 0 does so.
    """
    place = Path(folder).expanduser().absolute()
    is_local = world.is_main and bool(folder) and "://" not in folder
    new = [path for path in (place, *place.parents) if not path.exists()] if is_local else []
    try:
        yield
    except BaseException:
        for path in new:
            try:
                path.rmdir()
            except OSError:  # never created, or no longer empty
                break
        raise


def _problem(folder: Path, need_bytes: int) -> PreconditionError | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return PreconditionError(
            f"cannot write checkpoints to {folder}: {error.strerror or error}",
            hint="set `checkpoint.folder`, or `no_checkpoints=true`",
            code="checkpoint-folder",
        )
    if free < need_bytes:
        return PreconditionError(
            f"{folder} has {size(free)} free; one checkpoint takes {size(need_bytes)}",
            hint="free some space, or set `checkpoint.folder` to a larger disk",
            code="checkpoint-folder",
        )
    return None


@contextmanager
def building(recipe: Recipe | ResolvedRecipe) -> Iterator[Trainer[Any]]:
    """Build a recipe's trainer within torchrun's process group, and destroy the group at the end.

        with train.building(recipe) as trainer:
            trainer.add_callback("mine", Mine())
            trainer.fit()

    Raises:
        SpecError: problems that need data and processes to detect: shapes that do not divide, a small vocabulary.
        PreconditionError: the checkpoint folder is not writable, or has too little space.
    """
    device = recipe.recipe.device if isinstance(recipe, ResolvedRecipe) else recipe.device
    world = World.begin(device)
    try:
        yield build_trainer(recipe, world)
    except BaseException:
        world.abandon()
        raise
    world.end()


def build_trainer(recipe: Recipe | ResolvedRecipe, world: World) -> Trainer[Any]:
    """Build a recipe's trainer. Collective; raises the same errors as `building`.

    If it fails, a checkpoint folder that it created is removed.
    """
    chosen = recipe.recipe if isinstance(recipe, ResolvedRecipe) else recipe
    folder = "" if chosen.no_checkpoints else checkpoint_folder(chosen.checkpoint.folder, chosen.name)
    resolved = (
        recipe if isinstance(recipe, ResolvedRecipe) else ResolvedRecipe(recipe=recipe, source="python", origins={})
    )
    build = _built if not chosen.BUILDER else cast("Callable[..., Trainer[Any]]", load_reference(chosen.BUILDER))
    with removing_if_refused(folder, world):
        return build(resolved, world)


def _built(resolved: ResolvedRecipe, world: World) -> Trainer[Any]:
    own = resolved.recipe
    recipe = own.settled()
    problems = [*plan_misfits(recipe), *_misfits(recipe)]
    if problems:
        raise SpecError(problems)
    model = _model(recipe)
    vocab_size = _vocab_size(recipe, model)
    attach_adapter(model, recipe)
    freeze(model, recipe.optim.groups)
    names = [name for name, _ in plain_parameters(model)]
    store = open_run_store(recipe, model, world)
    parallelize(model, recipe.parallel, world)
    loader = _loader(recipe, world, vocab_size)
    if isinstance(model, Decoder) and isinstance(recipe.model, ModelConfig):
        init_weights(model, recipe.seed, device=world.device)
    module, checkpoint, record = _module(recipe, model, world, names), recipe.checkpoint, resolved.record()
    if isinstance(recipe.adapter, LoRAConfig):
        assert isinstance(module, TrainableModel)
        start_adapter(module, own, recipe.base_path)
        strategy: Literal["never", "if-available"] = "never" if checkpoint.load.strategy == "never" else "if-available"
        resuming = dataclasses.replace(checkpoint.load, path="", strategy=strategy)  # the base is loaded
        checkpoint = dataclasses.replace(checkpoint, load=resuming)
        record["adapter"] = adapter_record(recipe.adapter, recipe.base_path)
    trainer = Trainer(
        module,
        loader,
        duration=recipe.duration,
        stop=recipe.stop,
        schedule=_schedule(recipe, loader),
        callbacks=run_callbacks(recipe, vocab_size),
        store=store,
        checkpoint=checkpoint,
        world=world,
        collect_every=recipe.collect_every,
        seed=recipe.seed,
        config=record,
        stop_on_nan=recipe.stop_on_nan,
    )
    if trainer.checkpointer is not None:
        trainer.checkpointer.keeps_compiled = recipe.parallel.compile
    if recipe.parallel.compile:
        trainer.add_callback("compiling", Compiling())
    return trainer


def attach_adapter(model: nn.Module, recipe: Recipe) -> None:
    """Freeze a model without weights beside the adapter of a settled recipe; nothing without one."""
    if isinstance(recipe.adapter, LoRAConfig) and isinstance(recipe.model, ModelConfig):
        add_adapter(model, recipe.model, recipe.adapter)


def start_adapter(module: TrainableModel, recipe: Recipe, base: str) -> None:
    """Load the base model's weights and, with `adapter.from`, the adapter's. Collective.

    Args:
        recipe: as given; its `adapter` may name a stored one.
        base: path of the base model; empty if its weights are loaded.

    Raises:
        CheckpointError: the stored adapter was trained beside another base model.
    """
    weights = module.state_dict()["model"]
    if base:
        frozen = {name: value for name, value in weights.items() if not is_of_adapter(name)}
        warm_start({"model": frozen}, base, optim=False)
    if isinstance(recipe.adapter, StoredAdapter):
        model = recipe.settled().model
        assert isinstance(model, ModelConfig)
        adapter = open_adapter(recipe.adapter.path, model)
        check_base(sample_base(module.model), adapter.samples, recipe.base_path)
        fill({name: weights[name] for name in adapter.weights}, adapter, adapter.source)
    module.keep_base()


def _misfits(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for each conflict between parts of a recipe."""
    strict, rows = recipe.parallel.strict, recipe.data.batch_tokens // recipe.data.sequence_length
    if strict is not None and rows % strict.shards:
        message = f"parallel.strict.shards: {rows} rows of a batch are not divisible into {strict.shards} shards"
        yield Problem(message, "shape-conflict", hint="change `data.batch_tokens`, or set fewer shards")
    yield from check_parts(recipe)


def _model(recipe: Recipe) -> nn.Module:
    """Build a decoder without weights, or a custom model with the weights that its code initializes."""
    if isinstance(recipe.model, ModelTarget):
        model = build_own_model(recipe, recipe.model)
        mask = isinstance(recipe.data, DataConfig) and recipe.data.mask_documents
        if mask and recipe.train_module is None and not form_of(model).takes_documents:
            message = f"data.mask_documents: forward of {type(model).__name__} has no parameter `documents_BT`"
            raise SpecError([Problem(message, "setting-unused", hint="add it, or remove `mask_documents`")])
        return model
    with torch.device("meta"):
        return Decoder(recipe.model)


def _vocab_size(recipe: Recipe, model: nn.Module) -> int | None:
    if isinstance(recipe.model, ModelConfig):
        return recipe.model.vocab_size
    found = own_vocab_size(recipe.model, model)
    if found is None and isinstance(recipe.data, DataConfig):
        message = f"model: unknown vocabulary size of {recipe.model.target}; the data is checked against it"
        hint = "give it a parameter `vocab_size`, or set that attribute on the module"
        raise SpecError([Problem(message, "tokenizer-mismatch", hint=hint)])
    return found


def _loader(recipe: Recipe, world: World, vocab_size: int | None) -> Loader[Any]:
    if isinstance(recipe.data, LoaderTarget):
        return build_own_loader(recipe, recipe.data, world, vocab_size)
    assert vocab_size is not None  # `_vocab_size` rejects None
    return build_loader(
        _data(recipe, recipe.data),
        seed=recipe.seed,
        share=world.share,
        vocab_size=vocab_size,
        is_pinned=world.device.type == "cuda",
        on_progress=IngestProgress(),
    )


def _schedule(recipe: Recipe, loader: Loader[Any]) -> ScheduleConfig | Callable[[int, int], float]:
    batches = loader.batches_per_pass if isinstance(loader, CountsPasses) else loader.batches_per_epoch
    rates = Rates(batch_tokens=recipe.data.batch_tokens, batches_per_epoch=batches)
    if isinstance(recipe.schedule, ScheduleTarget):
        return own_schedule(recipe, recipe.schedule, rates)
    if isinstance(recipe.data, LoaderTarget):  # which has no `batch_tokens`
        return schedule_function(recipe.schedule, recipe.duration, rates)
    return recipe.schedule


def _module(recipe: Recipe, model: nn.Module, world: World, names: Sequence[str]) -> TrainModule[Any]:
    is_strict = recipe.parallel.strict is not None
    optimizer = build_optimizer(
        model, recipe.optim, is_strict=is_strict, replicas=replicas_of_model(model, world), names=names
    )
    if recipe.train_module is not None:
        return build_own_module(recipe, recipe.train_module, model, optimizer, world)
    kind = LanguageModule if pipeline_of(model) is None else PipelinedModule
    return kind(
        model,
        optimizer,
        loss=recipe.loss,
        max_grad_norm=recipe.optim.max_grad_norm,
        skip=recipe.optim.skip,
        is_strict=is_strict,
        world=world,
        seed=recipe.seed,
    )


def replicas_of_model(model: nn.Module, world: World) -> ProcessGroup | None:
    """Return the processes that hold identical, unsharded parameters, so that an optimizer can split its work."""
    names = () if world.mesh is None else world.mesh.mesh_dim_names or ()
    if world.mesh is None or "tp" in names or replicas_of(model) is None or "dp_replicate" not in names:
        return None
    group: ProcessGroup = world.mesh["dp_replicate"].get_group()
    return group


def _data(recipe: Recipe, data: DataConfig) -> DataConfig:
    """Return the data settings; in strict mode, a microbatch is one shard of the batch, whatever the process count."""
    strict = recipe.parallel.strict
    if strict is None:
        return data
    return dataclasses.replace(data, microbatch_tokens=data.batch_tokens // strict.shards)


def open_run_store(recipe: Recipe, model: nn.Module, world: World) -> CheckpointStore | None:
    if recipe.no_checkpoints:
        return None
    from windlass.train.checkpoint.store import open_store  # lazy: runs without checkpoints do not need it

    is_whole = num_adapter_weights(model) == 0
    num_parameters = sum(value.numel() for name, value in plain_parameters(model) if is_whole or is_of_adapter(name))
    folder = checkpoint_folder(recipe.checkpoint.folder, recipe.name)
    ensure_folder(folder, world, need_bytes=_BYTES_PER_PARAMETER * num_parameters)
    return open_store(folder, world, verifies=recipe.checkpoint.load.verifies)


_BYTES_PER_PARAMETER = 12
"""A float32 weight and two moments."""


_EVALUATING = ("lm-eval", "downstream")


def _wanted(recipe: Recipe) -> Mapping[str, CallbackConfig]:
    left_out = _EVALUATING if recipe.no_evals else ()
    return {name: config for name, config in recipe.callbacks.items() if config.kind not in left_out}


def run_callbacks(recipe: Recipe, vocab_size: int | None) -> Mapping[str, TrainerCallback | None]:
    return build_callbacks(_wanted(recipe), evaluation_makers(recipe, vocab_size))
