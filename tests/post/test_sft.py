"""Supervised fine-tuning from a recipe: what is learned, what is saved, what resumes, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.post.addition import TINY_MODEL, write_sums
from windlass.core.errors import SpecError, WindlassError
from windlass.post.objectives.batch import TokenBatch
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.recipe import PostRecipe
from windlass.testing.distributed import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.generation.continuation import continue_texts
from windlass.train.hf.import_export import export_hf
from windlass.train.parallel.world import World
from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.plan import plan_recipe
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

COMMON = ("data.tokenizer.path=bytes", "data.template=plain", "data.max_length=32", "data.microbatch_tokens=256")


def sft(folder: Path, *overrides: str, model: str = TINY_MODEL) -> ResolvedRecipe:
    source = folder / "sums.jsonl"
    if not source.exists():
        write_sums(source, 20)
    settings = (
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.batch_rows=10",
        "optim.lr=1e-2",
        "schedule.warmup=0steps",
        "~callbacks",
    )
    return resolve("sft", (model, *COMMON, *settings, *overrides))


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def weights(trainer: Trainer[TokenBatch]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.module.model.state_dict().items()}


def test_sums_are_learned_and_answered(tmp_path: Path) -> None:
    trainer = trainer_of(sft(tmp_path, "duration=60steps", "checkpoint.every=60steps"))
    outcome = trainer.fit()
    assert outcome.is_finished
    assert outcome.checkpoint
    made = continue_texts(outcome.checkpoint, ["7+3=", "0+0=", "4+6="], max_new_tokens=4)
    assert made == ["10", "0", "10"]  # all three are rows of the data


def test_only_answers_count(tmp_path: Path) -> None:
    trainer = trainer_of(sft(tmp_path))
    batch = next(iter(trainer.loader))
    assert isinstance(batch, TokenBatch)
    answers = sum(len(str(number * 7 % 10 + number * 3 % 10)) + 1 for number in range(10))
    assert isinstance(trainer.module, ObjectiveModule)
    assert trainer.module.weigh(batch)[0] == pytest.approx(answers, abs=10)
    assert trainer.module.count(batch) > trainer.module.weigh(batch)[0]


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = trainer_of(sft(tmp_path, "duration=8steps", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    first = trainer_of(sft(tmp_path, "duration=8steps", "stop=3steps"))
    first.fit()
    second = trainer_of(sft(tmp_path, "duration=8steps"))
    second.fit()
    assert second.step == 8
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(second).items())


def test_microbatches_do_not_change_the_result(tmp_path: Path) -> None:
    found = []
    for tokens in (32, 64, 4096):
        trainer = trainer_of(
            sft(
                tmp_path,
                "duration=3steps",
                f"data.microbatch_tokens={tokens}",
                f"checkpoint.folder={tmp_path / str(tokens)}",
            )
        )
        trainer.fit()
        found.append(weights(trainer))
    for other in found[1:]:
        assert all(torch.allclose(value, other[name], atol=1e-5) for name, value in found[0].items())


def test_a_run_starts_from_a_checkpoint_with_its_tokenizer(tmp_path: Path) -> None:
    first = trainer_of(sft(tmp_path, "duration=60steps"))
    first.fit()
    start = f"model.from={tmp_path / 'run'}"
    resolved = sft(
        tmp_path, "duration=1step", f"checkpoint.folder={tmp_path / 'next'}", 'data.tokenizer.path=""', model=start
    )
    second = trainer_of(resolved)
    assert isinstance(resolved.recipe, PostRecipe)
    second._begin()
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(second).items())
    assert second.step == 0
    outcome = second.fit()
    assert continue_texts(outcome.checkpoint, ["7+3="], max_new_tokens=4) == ["10"]  # its tokenizer is known


def test_a_run_starts_from_a_hugging_face_folder(tmp_path: Path) -> None:
    trainer_of(sft(tmp_path, "duration=60steps")).fit()
    export_hf(str(tmp_path / "run"), tmp_path / "hf", tokenizer="bytes")
    again = sft(
        tmp_path,
        "duration=1step",
        f"checkpoint.folder={tmp_path / 'next'}",
        'data.tokenizer.path=""',
        model=f"model.from=hf:{tmp_path / 'hf'}",
    )
    outcome = trainer_of(again).fit()
    assert continue_texts(outcome.checkpoint, ["7+3="], max_new_tokens=4) == ["10"]


def test_the_checkpoint_states_what_was_learned_from(tmp_path: Path) -> None:
    trainer = trainer_of(sft(tmp_path, "duration=1step"))
    prepared = trainer.config["prepared"]
    assert prepared["statistics"][0]["num_kept"] == 20
    assert (tmp_path / "cache" / prepared["key"] / "manifest.json").is_file()


def test_a_checkpoint_is_a_recipe_again(tmp_path: Path) -> None:
    outcome = trainer_of(sft(tmp_path, "duration=1step")).fit()
    again = resolve(outcome.checkpoint, ["duration=2steps"])
    assert type(again.recipe).__name__ == "SftRecipe"
    assert str(again.recipe.duration) == "2 steps"


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("data.batch_rows=0",), "batch_rows"),
        (("data.microbatch_tokens=16",), "smaller than one sequence of 32"),
        (("checkpoint.load.path=x", "model={from: y}"), "both `model.from` and `checkpoint.load.path`"),
        (("data.mix.0.fraction=0.5", "data.mix.0.count=3"), "both `fraction` and `count`"),
        (("model.head=scalar",), "a vocabulary head"),
        (("data.template=chatmi",), "unknown chat template `chatmi`"),
        (("data.mix.0.source=/nowhere.jsonl",), "no data at /nowhere.jsonl"),
        (("data.transforms=[shareqpt]",), "unknown transform `shareqpt`"),
        (("model.vocab_size=100",), "the model's vocabulary has 100"),
        (("model={from: /nowhere}",), "/nowhere"),
        (('data.tokenizer.path=""',), "needs a tokenizer"),
        (("parallel.context=2",), "parallel.context"),
    ],
)
def test_mistakes_are_named_before_training(tmp_path: Path, overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises((SpecError, WindlassError)) as caught:
        trainer_of(sft(tmp_path, *overrides))
    assert why in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_shipped_recipes_name_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("sft", "reward", "dpo"):
        with pytest.raises(SpecError, match=r"model\.from: no model at checkpoints/base"):
            trainer_of(resolve(name))
        with pytest.raises(SpecError, match="no model to start from"):
            resolve(name, ['model.from=""'])


def test_a_plan_knows_the_starting_model(tmp_path: Path) -> None:
    trainer_of(sft(tmp_path, "duration=1step")).fit()
    resolved = sft(tmp_path, model=f"model.from={tmp_path / 'run'}")
    plan = plan_recipe(resolved.recipe, MachineSpec(world=2), apply=False)
    assert plan.parameters.total == sum(value.numel() for value in weights(trainer_of(sft(tmp_path))).values())


def _steps(world: World, overrides: tuple[str, ...]) -> dict[str, list[float]]:
    trainer = build_trainer(resolve("sft", overrides), world)
    trainer.fit()
    return {name: value.flatten().tolist() for name, value in trainer.module.state_dict()["model"].items()}


def test_two_processes_train_the_same_model_as_one(tmp_path: Path) -> None:
    alone = trainer_of(sft(tmp_path, "duration=3steps"))
    alone.fit()
    overrides = sft(tmp_path, "duration=3steps", f"checkpoint.folder={tmp_path / 'two'}").overrides
    for found in run_distributed_test(_steps, num_processes=2, args=(overrides,)):
        for name, value in weights(alone).items():
            assert torch.allclose(torch.tensor(found[name]), value.flatten(), atol=1e-5), name
