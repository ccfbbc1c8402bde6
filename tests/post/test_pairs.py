"""Reward models and DPO from recipes: what is learned, the stored reference, resuming, exports."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.post.addition import TINY_MODEL, write_pairs, write_sums
from windlass.core.errors import SpecError
from windlass.post import reference
from windlass.post.data.prepared import PreparedData
from windlass.post.objectives.batch import TokenBatch
from windlass.post.objectives.module import ObjectiveModule
from windlass.train.build import build_trainer
from windlass.train.hf.import_export import export_hf
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.world import World
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

COMMON = (
    "data.max_length=32",
    "data.microbatch_tokens=256",
    "data.template=plain",
    "schedule.warmup=0steps",
    "~callbacks",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was fine-tuned on sums."""
    folder = tmp_path_factory.mktemp("base")
    overrides = (
        TINY_MODEL,
        *COMMON,
        f"data.mix.0.source={write_sums(folder / 'sums.jsonl', 20)}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.tokenizer.path=bytes",
        "data.batch_rows=10",
        "optim.lr=1e-2",
        "duration=20steps",
    )
    trainer_of(resolve("sft", overrides)).fit()
    return folder / "run"


def pairs(kind: str, folder: Path, start: Path, *overrides: str) -> ResolvedRecipe:
    source = folder / "pairs.jsonl"
    if not source.exists():
        write_pairs(source, 20)
    settings = (
        f"model.from={start}",
        *COMMON,
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / kind}",
        "data.batch_rows=10",
        "duration=30steps",
        "optim.lr=3e-3",
    )
    return resolve(kind, (*settings, *overrides))


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def metric(trainer: Trainer[TokenBatch], name: str) -> float:
    """A metric of one more batch, without training on it."""
    batch = next(iter(trainer.loader))
    assert isinstance(batch, TokenBatch)
    module = trainer.module
    assert isinstance(module, ObjectiveModule)
    with torch.no_grad():
        parts = [module._sums(part) for part in batch.parts]
    num_pairs = sum(part.num_sequences // 2 for part in batch.parts)
    return sum(float(part.metrics[name]) for part in parts) / num_pairs


def decoder_of(trainer: Trainer[TokenBatch]) -> Decoder:
    model = trainer.module.model
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("pooling", ["last", "answer"])
def test_a_reward_model_learns_to_prefer_the_sum(tmp_path: Path, base: Path, pooling: str) -> None:
    trainer = trainer_of(pairs("reward", tmp_path, base, f"pooling={pooling}", "duration=60steps"))
    before = metric(trainer, "accuracy")
    outcome = trainer.fit()
    assert outcome.is_finished
    assert metric(trainer, "accuracy") > max(0.9, before)


def test_a_reward_model_starts_from_the_weights_but_with_its_own_head(tmp_path: Path, base: Path) -> None:
    model = decoder_of(trainer_of(pairs("reward", tmp_path, base)))
    started = decoder_of(trainer_of(pairs("dpo", tmp_path, base)))
    assert torch.equal(
        model.blocks["0"].get_parameter("ffn.up.weight"), started.get_parameter("blocks.0.ffn.up.weight")
    )
    assert model.head is None
    assert model.score is not None
    assert model.score.weight.shape == (1, 32)


def test_a_reward_model_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    whole = trainer_of(pairs("reward", tmp_path, base, "duration=6steps", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(pairs("reward", tmp_path, base, "duration=6steps", "stop=2steps")).fit()
    second = trainer_of(pairs("reward", tmp_path, base, "duration=6steps"))
    second.fit()
    assert second.step == 6
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())


def test_transformers_computes_the_same_rewards(tmp_path: Path, base: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trainer = trainer_of(pairs("reward", tmp_path, base))
    trainer.fit()
    export_hf(str(tmp_path / "reward"), tmp_path / "hf", dtype="float32", tokenizer="bytes")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [
        "LlamaForSequenceClassification"
    ]
    batch = next(iter(trainer.loader))
    assert isinstance(batch, TokenBatch)
    rows = batch.parts[0]
    trainer.module.model.eval()
    with torch.no_grad():
        ours_BT = trainer.module.model(rows.tokens_BT)
    for row in range(3):
        last = int((rows.sequences_BT[row] >= 0).nonzero()[-1])
        ids = rows.tokens_BT[row : row + 1, : last + 1]
        with torch.no_grad():
            theirs = loaded(ids, attention_mask=torch.ones_like(ids)).logits
        assert float(theirs) == pytest.approx(float(ours_BT[row, last]), abs=1e-5)


def test_dpo_prefers_the_sum_and_starts_at_its_reference(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(pairs("dpo", tmp_path, base))
    assert metric(trainer, "margin") == pytest.approx(0.0, abs=1e-5)  # policy and reference are equal
    trainer.fit()
    assert metric(trainer, "accuracy") > 0.9


def test_losses_are_a_weighted_list(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(pairs("dpo", tmp_path, base, "objective.losses=[dpo, {kind: nll, weight: 0.5}]"))
    assert isinstance(trainer.module, ObjectiveModule)
    assert trainer.module.components == ("dpo", "nll")
    assert trainer.fit().is_finished


def test_the_reference_is_computed_once_and_found_after_folders_moved(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    forward = reference._forward

    def counted(data: PreparedData, model: nn.Module, world: World, *, budget: int, pad_id: int) -> np.ndarray:
        calls.append(1)
        return forward(data, model, world, budget=budget, pad_id=pad_id)

    monkeypatch.setattr(reference, "_forward", counted)
    first = trainer_of(pairs("dpo", tmp_path, base))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copytree(base, elsewhere / "model")
    shutil.copytree(tmp_path / "cache", elsewhere / "cache")
    shutil.copyfile(tmp_path / "pairs.jsonl", elsewhere / "pairs.jsonl")
    second = trainer_of(pairs("dpo", elsewhere, elsewhere / "model", f"checkpoint.folder={elsewhere / 'run'}"))
    assert len(calls) == 1
    for one, other in zip(islice(first.loader, 2), islice(second.loader, 2), strict=True):
        assert isinstance(one, TokenBatch)
        assert isinstance(other, TokenBatch)
        for mine, theirs in zip(one.parts, other.parts, strict=True):
            assert torch.equal(mine.streams["reference"], theirs.streams["reference"])
    changed = ("data.max_length=31", "data.template=tulu", "parallel.precision=bfloat16")
    for number, override in enumerate(changed, start=2):
        more = ("data.max_length=64", "data.template=tulu") if "tulu" in override else ()
        trainer_of(pairs("dpo", tmp_path, base, override, *more))
        assert len(calls) == number, override


def test_another_reference_model_is_computed_again(tmp_path: Path, base: Path) -> None:
    first = trainer_of(pairs("dpo", tmp_path, base, "duration=2steps"))
    outcome = first.fit()
    columns = len(list((tmp_path / "cache").glob("*-reference-*.npy")))
    trainer_of(pairs("dpo", tmp_path, Path(outcome.checkpoint), f"checkpoint.folder={tmp_path / 'second'}"))
    assert len(list((tmp_path / "cache").glob("*-reference-*.npy"))) == columns + 1


def test_simpo_needs_no_reference(tmp_path: Path, base: Path) -> None:
    trainer_of(pairs("dpo", tmp_path, base, "objective.losses=[simpo]"))
    assert not list((tmp_path / "cache").glob("*-reference-*.npy"))


def test_chats_are_refused_where_pairs_are_needed(tmp_path: Path, base: Path) -> None:
    write_sums(tmp_path / "pairs.jsonl", 5)
    with pytest.raises(SpecError, match=r"pairs\.jsonl:1: a preference needs `chosen` and `rejected`"):
        trainer_of(pairs("reward", tmp_path, base))
