"""Recipes as values: what they are checked for, what their schema takes, what the shipped ones hold."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from importlib import import_module
from typing import Any

import pytest

from tests.train.narrow import decoder_of
from windlass.config.encode import to_data
from windlass.config.loading import from_data
from windlass.config.schema_export import json_schema
from windlass.train.duration import Duration
from windlass.train.help import field_help
from windlass.train.model.flops import count_parameters
from windlass.train.optim.config import AdamWConfig
from windlass.train.recipe import Recipe
from windlass.train.recipes.shipped import SHIPPED
from windlass.train.resolve import resolve

RECIPES = {name: resolve(name).recipe for name in SHIPPED}


def validator_of(cls: type[Recipe]) -> Any:
    """Of the schema of a class of recipes."""
    jsonschema = importlib.import_module("jsonschema")  # it has no types
    schema = json_schema(cls)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", SHIPPED)
def test_records_keep_to_the_schema(name: str) -> None:
    full = to_data(RECIPES[name], keep_defaults=True)
    validator = validator_of(type(RECIPES[name]))
    assert [error.message for error in validator.iter_errors(full)] == []
    wrong = {**full, "optim": {**full["optim"], "lr": -1}}  # type: ignore[dict-item]
    assert list(validator.iter_errors(wrong))


@pytest.mark.parametrize("name", SHIPPED)
def test_data_and_back(name: str) -> None:
    recipe = RECIPES[name]
    assert from_data(type(recipe), json.loads(json.dumps(to_data(recipe)))) == recipe
    assert from_data(type(recipe), json.loads(json.dumps(to_data(recipe, keep_defaults=True)))) == recipe


@pytest.mark.parametrize(
    ("name", "parameters", "batch_tokens", "lr", "decay", "duration"),
    [
        # Counted by ai2-olmo-core 3.0.0 for its own presets of these sizes, with this vocabulary.
        ("llama-271m", 308_577_280, 262_144, 1e-3, 0.01, Duration.epochs(1)),
        ("olmo2-1b", 1_484_916_736, 2_097_152, 4e-4, 0.033, Duration.tokens(4 * 10**12)),
        ("olmo2-7b", 7_298_617_344, 4_194_304, 3e-4, 0.1, Duration.tokens(4 * 10**12)),
        ("olmo2-32b", 32_234_279_936, 8_388_608, 6e-4, 0.1, Duration.tokens(65 * 10**11)),
        ("olmo3-7b", 7_298_617_344, 4_194_304, 3e-4, 0.1, Duration.tokens(5 * 10**12)),
        ("olmo3-32b", 32_234_279_936, 8_388_608, 6e-4, 0.1, Duration.epochs(1)),
    ],
)
def test_published_settings(
    name: str, parameters: int, batch_tokens: int, lr: float, decay: float, duration: Duration
) -> None:
    recipe = RECIPES[name]
    assert count_parameters(decoder_of(recipe)).total == parameters
    assert (recipe.data.batch_tokens, recipe.duration) == (batch_tokens, duration)
    assert isinstance(recipe.optim, AdamWConfig)
    assert (recipe.optim.lr, recipe.optim.weight_decay) == (lr, decay)
    assert recipe.optim.groups[0].match == ("embed.*",)
    assert recipe.optim.groups[0].weight_decay == 0.0


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_says_where_it_is_from(name: str) -> None:
    shipped = SHIPPED[name]
    module = import_module(shipped.module)
    doc = inspect.getdoc(getattr(module, shipped.function)) or ""
    assert name == "tiny" or "Source" in doc
    assert shipped.function in module.__all__
    assert len(shipped.summary) <= 80


def test_tiny_is_tiny() -> None:
    assert 1_000_000 < count_parameters(decoder_of(RECIPES["tiny"])).total < 3_000_000
    assert decoder_of(RECIPES["tiny"]).vocab_size == 258


def test_every_field_says_what_it_is_for() -> None:
    rows = field_help()
    assert len(rows) > 150
    assert [row.path for row in rows if not row.doc or not row.takes] == []
    assert len({(row.path, row.kinds) for row in rows}) == len(rows)


def test_help_shows_the_values_of_a_recipe() -> None:
    rows = {(row.path, row.kinds): row.value for row in field_help(RECIPES["olmo2-32b"])}
    assert rows["optim.lr", ()] == "0.0006"
    assert rows["duration", ()] == "6500000000000 tokens"
    assert rows["parallel.checkpointing.kind", ()] == "full"
    assert rows["parallel.checkpointing.share", ("budget",)] == "0.5"
    assert rows["model.moe", ("decoder",)] == "null"


def test_recipes_import_nothing_but_data() -> None:
    for name in {shipped.module for shipped in SHIPPED.values()}:
        module = import_module(name)
        tree = ast.parse(inspect.getsource(module))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        plain = modules - {"__future__", "dataclasses"}
        assert all(one is not None and one.startswith(("windlass.train.", "windlass.post.")) for one in plain)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
