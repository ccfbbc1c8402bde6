"""Trainables by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from windlass import tune
from windlass.core.errors import NotFoundError, UsageError
from windlass.tune import registry
from windlass.tune.registry import name_of, resolve_trainable


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_trainables", {})


def train(config: dict[str, Any]) -> None:
    """A trainable."""


def test_the_newest_trainable_of_a_name_counts() -> None:
    tune.register_trainable("mine", print)
    tune.register_trainable("mine", train)
    assert resolve_trainable("mine") is train
    assert resolve_trainable(train) is train


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    tune.register_trainable("resnet", train)
    with pytest.raises(NotFoundError) as caught:
        resolve_trainable("resnets")
    assert (caught.value.message, caught.value.hint) == ("unknown trainable 'resnets'", "did you mean 'resnet'?")


def test_what_cannot_be_called_is_no_trainable() -> None:
    with pytest.raises(UsageError, match="3 is not a trainable"):
        resolve_trainable(3)
    with pytest.raises(UsageError, match="cannot register 'three': 3 is not a trainable"):
        tune.register_trainable("three", 3)


def test_names_for_people() -> None:
    assert [name_of(thing) for thing in (train, partial(train), lambda config: None, Exception)] == [
        "train",
        "train",
        "lambda",
        "Exception",
    ]
