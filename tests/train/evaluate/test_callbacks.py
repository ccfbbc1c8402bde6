"""Evaluation as a recipe asks for it: when it runs, what it records, and that it leaves training as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from windlass import train
from windlass.core.errors import SpecError
from windlass.train.build import build_trainer
from windlass.train.callbacks.config import LMEvalConfig
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.data.config import DataConfig, SourceConfig, TokenizerConfig
from windlass.train.duration import Duration
from windlass.train.evaluate.lm_eval import LMEval
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.parallel.world import World

MODEL = ModelConfig(d_model=16, num_layers=1, vocab_size=258, hidden=32, attention=AttentionConfig(num_heads=2))


class Diary(TrainerCallback):
    """Metrics of evaluations, by step."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, float]] = {}

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        evaluated = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        if evaluated:
            self.found[step] = evaluated


def trainer(folder: Path, **changes: Any) -> tuple[Any, Diary]:
    (folder / "text.txt").write_text("some words to learn from, again and again\n" * 60)
    (folder / "held.txt").write_text("some words to be asked about\n" * 4)
    source = SourceConfig(path=(str(folder / "held.txt"),))
    settings = {"every": Duration.steps(2), "at_start": True, **changes.pop("settings", {})}
    recipe = train.Recipe(
        name="evaluated",
        model=MODEL,
        data=DataConfig(
            sources=(SourceConfig(path=(str(folder / "text.txt"),)),),
            tokenizer=TokenizerConfig(path="bytes"),
            sequence_length=32,
            batch_tokens=64,
            cache=folder / "cache",
        ),
        duration=Duration.steps(5),
        callbacks={"held": LMEvalConfig(sources={"words": changes.pop("source", source)}, **settings)},
        no_checkpoints=True,
        device="cpu",
        **changes,
    )
    made = build_trainer(recipe, World(device=torch.device("cpu")))
    diary = Diary()
    made.add_callback("diary", diary)
    return made, diary


def test_at_the_start_every_second_step_and_at_the_end(tmp_path: Path) -> None:
    made, diary = trainer(tmp_path)
    made.fit()
    assert sorted(diary.found) == [0, 2, 4, 5]
    assert set(diary.found[2]) == {"eval/words/loss", "eval/words/perplexity"}
    losses = [found["eval/words/loss"] for _, found in sorted(diary.found.items())]
    assert losses == sorted(losses, reverse=True)
    callback = made.callbacks["held"]
    assert isinstance(callback, LMEval)
    assert callback.found["words"].loss == losses[-1]


def test_only_at_the_end(tmp_path: Path) -> None:
    made, diary = trainer(tmp_path, settings={"every": None, "at_start": False})
    made.fit()
    assert sorted(diary.found) == [5]


def test_evaluation_does_not_change_training(tmp_path: Path) -> None:
    with_it, _ = trainer(tmp_path)
    with_it.fit()
    without, diary = trainer(tmp_path, no_evals=True)
    without.fit()
    assert diary.found == {}
    for left, right in zip(with_it.module.model.parameters(), without.module.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_stop_ends_an_evaluation(tmp_path: Path) -> None:
    made, diary = trainer(tmp_path)
    made.request_stop()
    outcome = made.fit()
    assert (outcome.end, outcome.step, diary.found) == ("stopped", 0, {})


def test_a_missing_source_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nowhere"):
        trainer(tmp_path, source=SourceConfig(path=(str(tmp_path / "nowhere.txt"),)))
