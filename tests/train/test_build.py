"""From a recipe to a trainer: what does not fit is refused before any work is lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.narrow import data_of
from tests.train.tiny_recipe import tiny_recipe
from windlass.core.errors import WindlassError
from windlass.train.build import build_trainer, building
from windlass.train.callbacks.config import DownstreamConfig, LMEvalConfig
from windlass.train.parallel.config import ParallelConfig, PipelineConfig, StrictConfig
from windlass.train.parallel.world import World
from windlass.train.plan.checks import checked_shape
from windlass.train.resolve import resolve

ALONE = World(device=torch.device("cpu"))


def test_a_recipe_trains_and_its_checkpoint_is_a_recipe_again(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, steps=2)
    with building(recipe) as trainer:
        outcome = trainer.fit()
    assert (outcome.end, outcome.step, outcome.tokens) == ("finished", 2, 256)
    folder = tmp_path / "checkpoints/step-2"
    assert outcome.checkpoint == str(folder)
    assert json.loads((folder / "config.json").read_text())["schema"] == "windlass.recipe/1"
    assert resolve(str(folder)).recipe == recipe


def test_evaluations_are_left_out_when_none_are_wanted(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, no_evals=True, no_checkpoints=True)
    callbacks = {"held": LMEvalConfig(sources={"x": data_of(recipe).sources[0]})}
    trainer = build_trainer(dataclasses.replace(recipe, callbacks=callbacks), ALONE)
    assert "held" not in trainer.callbacks
    assert trainer.store is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallel": ParallelConfig(strict=StrictConfig(shards=8))},
            "4 rows of a batch are not divisible into 8 shards",
        ),
        ({"microbatch_tokens": 96}, "cannot divide a batch of 4 rows between 1 processes in microbatches of 3 rows"),
        ({"model.vocab_size": 100}, "100"),
        ({"parallel": ParallelConfig(tensor=2)}, "1 processes do not divide into groups of 2"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    vocab_size = changes.pop("model.vocab_size", None)
    recipe = tiny_recipe(tmp_path, **changes)
    if vocab_size is not None:
        recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, vocab_size=vocab_size))
    with pytest.raises(WindlassError, match=message):
        build_trainer(recipe, ALONE).fit()
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("parallel", "name"),
    [
        (ParallelConfig(pipeline=PipelineConfig(stages=2)), "parallel.pipeline.stages 2"),
        (ParallelConfig(context=2), "parallel.context 2"),
    ],
)
def test_a_harness_asks_whole_models_only(tmp_path: Path, parallel: ParallelConfig, name: str) -> None:
    recipe = tiny_recipe(tmp_path, parallel=parallel)
    asked = dataclasses.replace(recipe, callbacks={"asked": DownstreamConfig(tasks=("arc_easy",))})
    for refuse in (lambda: build_trainer(asked, ALONE), lambda: checked_shape(asked, 2)):
        with pytest.raises(WindlassError, match=f"callbacks.asked: tasks are not supported with {name}"):
            refuse()
    without = dataclasses.replace(asked, no_evals=True)
    disabled = {"asked": DownstreamConfig(tasks=("arc_easy",), enabled=False)}
    for recipe in (without, dataclasses.replace(asked, callbacks=disabled)):
        assert checked_shape(recipe, 2).world_size == 2


def test_changed_text_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    build_trainer(tiny_recipe(tmp_path, steps=2), ALONE).fit()
    text = tmp_path / "text.txt"
    text.write_text(text.read_text()[:-100] + "x" * 100)
    with pytest.raises(WindlassError) as error:
        build_trainer(tiny_recipe(tmp_path, steps=4), ALONE).fit()
    assert error.value.code == "tokens-changed"
    recipe = tiny_recipe(tmp_path, steps=4)
    lenient = dataclasses.replace(recipe, data=dataclasses.replace(data_of(recipe), allow_changes=True))
    assert build_trainer(lenient, ALONE).fit().step == 4
