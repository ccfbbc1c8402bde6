"""A trainer that takes a millisecond a step, for callbacks to hang on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.train.tiny import QUIET, MemoryStore, PointLoader, Points, point_module
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.duration import Duration
from windlass.train.trainer import Trainer

Make = Callable[..., Trainer[Points]]


@pytest.fixture
def make() -> Make:
    """`make({"name": callback}, steps=5)`: a trainer with these alone."""

    def made(callbacks: Mapping[str, TrainerCallback | None], *, steps: int = 5, **options: Any) -> Trainer[Points]:
        loader = options.pop("loader", None) or PointLoader()
        options.setdefault("duration", Duration.steps(steps))
        module = options.pop("module", None) or point_module()
        return Trainer(module, loader, callbacks={**QUIET, **callbacks}, **options)

    return made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()
