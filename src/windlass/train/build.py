"""From a recipe to a trainer: cheap checks first, then data, then weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from windlass.core.errors import Problem, SpecError
from windlass.train.batch import Batch
from windlass.train.callbacks.build import build_callbacks
from windlass.train.data.announcing import Announcer
from windlass.train.data.build import build_loader
from windlass.train.data.config import DataConfig
from windlass.train.evaluate.build import evaluation_makers
from windlass.train.folder import checkpoint_folder, ensure_folder
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.pipelined import PipelinedModule
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.groups import freeze, plain_parameters
from windlass.train.parallel.apply import parallelize, pipeline_of, replicas_of
from windlass.train.parallel.mesh import check_model
from windlass.train.parallel.world import World
from windlass.train.plan.checks import check_parts
from windlass.train.recipe import Recipe
from windlass.train.resolve import Resolved
from windlass.train.trainer import Trainer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from windlass.train.callbacks.config import CallbackConfig
    from windlass.train.callbacks.protocol import Callback
    from windlass.train.checkpoint.protocol import CheckpointStore

__all__ = ["build_trainer", "building"]


@contextmanager
def building(recipe: Recipe | Resolved) -> Iterator[Trainer[Batch]]:
    """A trainer of a recipe, in the process group that torchrun's variables name; the group is left at the end.

        with train.building(recipe) as trainer:
            trainer.add_callback("mine", Mine())
            trainer.fit()

    Raises:
        SpecError: what only shows with data and processes at hand: shapes that do not divide, a small vocabulary.
        PreconditionError: the checkpoint folder cannot be written, or has no room.
    """
    device = recipe.recipe.device if isinstance(recipe, Resolved) else recipe.device
    world = World.begin(device)
    yield build_trainer(recipe, world)
    world.end()


def build_trainer(recipe: Recipe | Resolved, world: World) -> Trainer[Batch]:
    """Everything that a recipe names, put together. Collective; raises as `building`."""
    resolved = recipe if isinstance(recipe, Resolved) else Resolved(recipe=recipe, source="python", origins={})
    recipe = resolved.recipe
    problems = check_model(recipe.parallel, recipe.model, sequence_length=recipe.data.sequence_length)
    problems += _misfits(recipe)
    if problems:
        raise SpecError(problems)
    with torch.device("meta"):
        model = Decoder(recipe.model)
    freeze(model, recipe.optim.groups)
    names = [name for name, _ in plain_parameters(model)]
    store = _store(recipe, model, world)
    parallelize(model, recipe.parallel, world)
    data = _data(recipe)
    loader = build_loader(
        data,
        seed=recipe.seed,
        share=world.share,
        vocab_size=recipe.model.vocab_size,
        is_pinned=world.device.type == "cuda",
        on_progress=Announcer(),
    )
    init_weights(model, recipe.seed, device=world.device)
    trainer = Trainer(
        _module(recipe, model, world, names),
        loader,
        duration=recipe.duration,
        stop=recipe.stop,
        schedule=recipe.schedule,
        callbacks=_callbacks(recipe),
        store=store,
        checkpoint=recipe.checkpoint,
        world=world,
        collect_every=recipe.collect_every,
        seed=recipe.seed,
        config=resolved.record(),
        stop_on_nan=recipe.stop_on_nan,
    )
    if trainer.checkpointer is not None:
        trainer.checkpointer.keeps_compiled = recipe.parallel.compile
    return trainer


def _misfits(recipe: Recipe) -> Iterator[Problem]:
    """Parts of a recipe that cannot go together."""
    strict, rows = recipe.parallel.strict, recipe.data.batch_tokens // recipe.data.sequence_length
    if strict is not None and rows % strict.shards:
        message = f"parallel.strict.shards: {rows} rows of a batch do not divide into {strict.shards} shards"
        yield Problem(message, "shape-conflict", hint="change `data.batch_tokens`, or take fewer shards")
    yield from check_parts(recipe)


def _module(recipe: Recipe, model: Decoder, world: World, names: Sequence[str]) -> LanguageModule:
    is_strict = recipe.parallel.strict is not None
    kind = LanguageModule if pipeline_of(model) is None else PipelinedModule
    return kind(
        model,
        build_optimizer(model, recipe.optim, is_strict=is_strict, replicas=_replicas(model, world), names=names),
        loss=recipe.loss,
        max_grad_norm=recipe.optim.max_grad_norm,
        skip=recipe.optim.skip,
        is_strict=is_strict,
        world=world,
        seed=recipe.seed,
    )


def _replicas(model: Decoder, world: World) -> ProcessGroup | None:
    """The processes that hold the same whole parameters, between which an optimiser may share out its work."""
    names = () if world.mesh is None else world.mesh.mesh_dim_names or ()
    if world.mesh is None or "tp" in names or replicas_of(model) is None or "dp_replicate" not in names:
        return None
    group: ProcessGroup = world.mesh["dp_replicate"].get_group()
    return group


def _data(recipe: Recipe) -> DataConfig:
    """In strict mode a microbatch is one shard of the batch, whatever the number of processes."""
    strict = recipe.parallel.strict
    if strict is None:
        return recipe.data
    return dataclasses.replace(recipe.data, microbatch_tokens=recipe.data.batch_tokens // strict.shards)


def _store(recipe: Recipe, model: Decoder, world: World) -> CheckpointStore | None:
    if recipe.no_checkpoints:
        return None
    from windlass.train.checkpoint.store import open_store  # lazy: runs without checkpoints need none of it

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    folder = checkpoint_folder(recipe.checkpoint.folder, recipe.name)
    ensure_folder(folder, world, need_bytes=_BYTES_PER_PARAMETER * num_parameters)
    return open_store(folder, world, verifies=recipe.checkpoint.load.verifies)


_BYTES_PER_PARAMETER = 12
"""A float32 weight and two moments."""


_EVALUATING = ("lm-eval", "downstream")


def _wanted(recipe: Recipe) -> Mapping[str, CallbackConfig]:
    left_out = _EVALUATING if recipe.no_evals else ()
    return {name: config for name, config in recipe.callbacks.items() if config.kind not in left_out}


def _callbacks(recipe: Recipe) -> Mapping[str, Callback | None]:
    return build_callbacks(_wanted(recipe), evaluation_makers(recipe))
