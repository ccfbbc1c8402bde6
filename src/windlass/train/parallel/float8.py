"""Matrix products in float8, using torchao, on GPUs that support them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import nn

from windlass.core.errors import PreconditionError

if TYPE_CHECKING:
    from windlass.train.parallel.config import Float8Config

__all__ = ["is_converted", "use_float8"]

_ALIGNMENT = 16
"""Both sides of a matrix must be multiples of this."""

_CAPABILITIES = {"tensorwise": (8, 9), "rowwise": (9, 0)}


def use_float8(model: nn.Module, config: Float8Config, device: torch.device) -> None:
    """Replace linear layers with float8 ones, in place; names and weights do not change.

    Only useful with compiled blocks: without compilation, scaling costs more than the products gain.

    Raises:
        PreconditionError: the device does not support float8, or torchao is not installed.
    """
    _require(config, device)
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # lazy: optional
    except ImportError as error:
        message = "parallel.float8 needs torchao, which is not installed"
        raise PreconditionError(message, hint="pip install torchao", code="extra-missing") from error
    convert_to_float8_training(
        model,
        config=Float8LinearConfig.from_recipe_name(config.recipe),
        module_filter_fn=lambda module, name: is_converted(module, name, config.skip),
    )


def is_converted(module: nn.Module, name: str, skip: tuple[str, ...]) -> bool:
    """Return whether a module with this name is computed in float8."""
    if not isinstance(module, nn.Linear) or any(fnmatchcase(name, pattern) for pattern in skip):
        return False
    sides: tuple[int, int] = (module.in_features, module.out_features)
    return all(side % _ALIGNMENT == 0 for side in sides)


def _require(config: Float8Config, device: torch.device) -> None:
    needed = _CAPABILITIES[config.recipe]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= needed:
        return
    found = f"capability {torch.cuda.get_device_capability(device)}" if device.type == "cuda" else device.type
    message = f"parallel.float8 {config.recipe} needs a GPU of capability {needed}; found {found}"
    raise PreconditionError(message, hint="remove `parallel.float8`", code="unsupported-setting")
