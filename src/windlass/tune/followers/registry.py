"""Targets of followers, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.followers.target import Target

__all__ = ["TARGETS", "make_target"]

TARGETS = {
    "csv": "windlass.tune.followers.files:CSVTarget",
    "json": "windlass.tune.followers.files:JSONTarget",
    "tensorboard": "windlass.tune.followers.tensorboard:TensorBoardTarget",
    "wandb": "windlass.tune.followers.wandb_runs:WandbTarget",
    "mlflow": "windlass.tune.followers.mlflow_runs:MLflowTarget",
}


def make_target(name: str, options: Mapping[str, Any]) -> Target:
    """Create the target with a name.

    Raises:
        UsageError: the name is unknown, or the target does not take an option (`unknown-name`).
    """
    if name not in TARGETS:
        raise BadValueError(f"unknown follower {name!r}", hint=f"one of {', '.join(TARGETS)}", code="unknown-name")
    module, _, attribute = TARGETS[name].partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)(**options)
    except TypeError as error:
        raise BadValueError(
            f"the follower {name!r} does not take these options: {error}",
            hint="see the arguments of its class in windlass.tune.followers",
            code="unknown-name",
        ) from error
    assert isinstance(target, Target)
    return target
