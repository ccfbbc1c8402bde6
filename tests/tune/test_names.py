"""The names of windlass.tune: each is where the table says, and type checkers see the same."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass import tune
from windlass.tune.tuner.choices import make_executor

HOMES: dict[str, str] = vars(tune)["_HOMES"]
PACKAGES: frozenset[str] = vars(tune)["_PACKAGES"]


def test_every_name_is_where_the_table_says() -> None:
    assert sorted(HOMES) == sorted(tune.__all__)
    for name, home in HOMES.items():
        module, _, there = home.partition(":")
        assert getattr(tune, name) is getattr(importlib.import_module(module), there or name)
        assert name not in PACKAGES
    for name in PACKAGES:
        assert getattr(tune, name) is importlib.import_module(f"windlass.tune.{name}")


def test_the_stub_has_the_same_names() -> None:
    assert tune.__file__ is not None
    tree = ast.parse(Path(tune.__file__).with_suffix(".pyi").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname: (node.module, alias.name) for alias in node.names})
    table = {name: home.partition(":") for name, home in HOMES.items()}
    expected = {name: (module, there or name) for name, (module, _, there) in table.items()}
    assert found == expected | {name: ("windlass.tune", name) for name in PACKAGES}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'windlass.tune' has no attribute 'Tunr'"):
        tune.Tunr  # type: ignore[attr-defined] # noqa: B018


def test_the_executor_is_ray_only_where_ray_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, need: Callable[[str], None]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert make_executor(None).name == "local"
    assert make_executor("in-process").name == "in-process"
    need("ray")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert make_executor(None).name == "ray"
