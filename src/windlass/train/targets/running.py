"""Custom loaders, train modules and callbacks: building them, and checking their interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from windlass.core.errors import Problem, SpecError
from windlass.train.optim.config import LossConfig
from windlass.train.targets.calling import call_target
from windlass.train.targets.signature import read_signature

if TYPE_CHECKING:
    import torch

    from windlass.train.data.config import LoaderTarget
    from windlass.train.data.protocol import Loader
    from windlass.train.modules.protocol import TrainModule
    from windlass.train.parallel.world import World
    from windlass.train.recipe import Recipe
    from windlass.train.targets.config import ModuleTarget, TargetConfig

__all__ = ["build_own_loader", "build_own_module"]

_LOADER = ("batches_per_epoch", "__iter__", "state_dict", "load_state_dict")
_MODULE = (
    *("model", "optimizer", "weigh", "count", "train_batch", "optim_step", "eval_batch"),
    *("state_dict", "load_state_dict", "flops"),
)


def build_own_loader(recipe: Recipe, config: LoaderTarget, world: World, vocab_size: int | None) -> Loader[Any]:
    """Build the user's own data loader.

    Raises:
        SpecError: it fails, or lacks a method or attribute that the trainer needs.
    """
    made = call_target(
        config,
        "loader",
        "data",
        share=world.share,
        world=world,
        seed=recipe.seed,
        recipe=recipe,
        batch_tokens=config.batch_tokens,
        sequence_length=config.sequence_length,
        microbatch_tokens=config.microbatch_tokens,
        vocab_size=vocab_size,
    )
    _require(made, _LOADER, config, "data")
    return cast("Loader[Any]", made)


def build_own_module(
    recipe: Recipe, config: ModuleTarget, model: torch.nn.Module, optimizer: torch.optim.Optimizer, world: World
) -> TrainModule[Any]:
    """Build the user's own train module.

    Raises:
        SpecError: it fails, lacks a method or attribute that the trainer needs, or ignores a recipe setting.
    """
    given = read_signature(config.target, ("loss", "max_grad_norm", "skip")).given
    unused = [
        name
        for name, is_set in (("loss", recipe.loss != LossConfig()), ("optim.skip", recipe.optim.skip is not None))
        if is_set and name.rpartition(".")[2] not in given
    ]
    if unused:
        message = f"`{unused[0]}` is set, but {config.target} has no parameter of that name and would ignore it"
        hint = f"add the parameter `{unused[0].rpartition('.')[2]}`, or remove `{unused[0]}`"
        raise SpecError([Problem(message, "setting-unused", hint=hint)])
    made = call_target(
        config,
        "train_module",
        "train_module",
        model=model,
        optimizer=optimizer,
        world=world,
        seed=recipe.seed,
        loss=recipe.loss,
        max_grad_norm=recipe.optim.max_grad_norm,
        skip=recipe.optim.skip,
        recipe=recipe,
    )
    _require(made, _MODULE, config, "train_module")
    return cast("TrainModule[Any]", made)


def _require(made: object, names: Sequence[str], config: TargetConfig, where: str) -> None:
    missing = [name for name in names if not hasattr(made, name)]
    if missing:
        message = f"{where}: {config.target} makes a {type(made).__name__} without {', '.join(missing)}"
        hint = "see docs/concepts/training.md"
        raise SpecError([Problem(message, "recipe-wrong", hint=hint)])
