"""A callback of the user's own, by its import path."""

from __future__ import annotations

from windlass.core.errors import Problem, SpecError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.targets.calling import call_target
from windlass.train.targets.config import TargetConfig

__all__ = ["load_callback"]


def load_callback(config: TargetConfig, *, where: str = "callbacks") -> TrainerCallback:
    """Call `module:Class` or `file.py:Class` with its arguments.

    Args:
        where: path of the settings, for errors.

    Raises:
        SpecError: it cannot be imported or called, or makes no TrainerCallback.
    """
    callback = call_target(config, "callback", where)
    if isinstance(callback, TrainerCallback):
        return callback
    message = f"{where}: {config.target} makes a {type(callback).__name__}, which is no TrainerCallback"
    hint = "let it be a subclass of windlass.train.TrainerCallback"
    raise SpecError([Problem(message, "bad-callback", None, hint)])
