"""Evaluation counts every label once, and finds the same number on any number of processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.evaluate.together import together
from windlass.core.errors import SpecError
from windlass.train.batch import IGNORE, Batch
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.evaluate.lm_eval import EvalLoss, HeldOut, evaluate, open_held_out
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule
from windlass.train.parallel.world import World

MODEL = ModelConfig(d_model=16, num_layers=1, vocab_size=258, hidden=32, attention=AttentionConfig(num_heads=2))
TEXT = "".join(f"line {number} of a short text, {number * number}\n" for number in range(40))
ONE = World(device=torch.device("cpu"))


def data(**changes: object) -> DataConfig:
    base = DataConfig(
        sources=(SourceConfig(path=("unused.txt",)),),
        tokenizer=TokenizerConfig(path="bytes"),
        sequence_length=32,
        batch_tokens=32 * 8,
        microbatch_tokens=32 * 3,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def held_out(folder: Path, *, max_tokens: int | None = None, text: str = TEXT, **changes: object) -> HeldOut:
    (folder / "held.txt").write_text(text)
    source = SourceConfig(path=(str(folder / "held.txt"),))
    return open_held_out(
        "held", source, data(cache=folder / "cache", **changes), vocab_size=MODEL.vocab_size, max_tokens=max_tokens
    )


def language() -> LanguageModule:
    model = Decoder(MODEL)
    init_weights(model, 0)
    return LanguageModule(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_all_tokens_count_once(tmp_path: Path) -> None:
    module, rows = language(), held_out(tmp_path)
    found = evaluate(module, rows, ONE)
    assert found is not None
    tokens = [*TEXT.encode(), 256]
    total, count = 0.0, 0
    for start in range(0, len(tokens), 32):
        row = torch.tensor(tokens[start : start + 32])
        if len(row) > 1:
            with torch.no_grad():
                logits = module.model(row[None])
            total += float(F.cross_entropy(logits[0, :-1], row[1:], reduction="sum"))
            count += len(row) - 1
    assert found.num_labels == count
    assert found.loss == pytest.approx(total / count, rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)


@pytest.mark.parametrize(("world", "replicas"), [(2, 1), (3, 1), (2, 2), (8, 1)])
def test_any_number_of_processes_finds_the_same_bits(tmp_path: Path, world: int, replicas: int) -> None:
    rows = held_out(tmp_path)
    alone = evaluate(language(), rows, ONE)
    assert together(lambda place: evaluate(language(), rows, place), world=world, replicas=replicas) == [alone] * (
        world * replicas
    )


def test_no_more_tokens_than_are_asked_for(tmp_path: Path) -> None:
    found = evaluate(language(), held_out(tmp_path, max_tokens=100), ONE)
    assert found is not None
    assert found.num_labels == 3 * 31


def test_documents_one_by_one(tmp_path: Path) -> None:
    rows = held_out(tmp_path, layout="pad", mask_documents=True)
    found = evaluate(language(), rows, ONE)
    assert found is not None
    pieces = [len(part) for part in [TEXT.encode() + b"!"]]
    assert found.num_labels == sum(count - -(-count // 32) for count in pieces)


class Counting:
    """Loss 1 for each label, and which rows came."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def eval_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        counts_B = (batch.labels_BT != IGNORE).sum(dim=1)
        self.rows += [row for row, count in zip(batch.rows, counts_B.tolist(), strict=True) if count]
        return {"loss": counts_B.sum().float(), "weight": counts_B.sum().float()}


def test_each_row_comes_once(tmp_path: Path) -> None:
    rows = held_out(tmp_path)
    modules = [Counting() for _ in range(4)]
    together(lambda place: evaluate(modules[place.rank], rows, place), world=4)
    assert sorted(row for module in modules for row in module.rows) == list(range(rows.num_rows))
    assert [len(module.rows) for module in modules] != [rows.num_rows] * 4


def test_a_stop_is_obeyed_before_the_next_batch(tmp_path: Path) -> None:
    rows, module = held_out(tmp_path), Counting()
    answers = iter([False, False, True])
    assert evaluate(module, rows, ONE, should_stop=lambda: next(answers)) is None
    assert len(module.rows) == 2 * rows.rows_batch


def test_nothing_to_evaluate_on(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        held_out(tmp_path, text="")


def test_a_loss_too_large_for_a_perplexity() -> None:
    assert EvalLoss(name="x", loss=1e4, num_labels=1).perplexity == math.inf
