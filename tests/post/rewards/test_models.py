"""Rewards by a reward model: values of the model itself, in batches; a failure is no value; wrong models are refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from tests.post.addition import TINY_MODEL, write_sums
from windlass.core.errors import SpecError, WindlassError
from windlass.post.control.config import RewardsConfig, VerifierConfig
from windlass.post.control.scoring import AnswerScorer
from windlass.post.rewards.models import RewardModel
from windlass.post.rollout.types import Sample, SampleId, TokenSpan
from windlass.train.build import build_trainer
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.hf.sources import load_model
from windlass.train.parallel.world import World
from windlass.train.resolve import resolve

pytestmark = pytest.mark.system

BYTES = load_tokenizer(TokenizerConfig(path="bytes"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reward models of both kinds of pooling, and a policy."""
    folder = tmp_path_factory.mktemp("models")
    pairs = [{"prompt": f"{n}+{n}=", "chosen": f"{n + n}", "rejected": f"{n + 1}x"} for n in range(10)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    found = {}
    for name, recipe, extra in (
        ("last", "reward", ("model.head=scalar",)),
        ("answer", "reward", ("model.head=scalar", "pooling=answer")),
        ("policy", "sft", ()),
    ):
        source = folder / "pairs.jsonl" if recipe == "reward" else write_sums(folder / "sums.jsonl", 10)
        settings = (
            TINY_MODEL,
            "data.template=plain",
            "schedule.warmup=0steps",
            "~callbacks",
            "data.batch_rows=5",
            "data.max_length=32",
            "data.microbatch_tokens=256",
            f"data.mix.0.source={source}",
            f"data.cache={folder / 'cache'}",
            f"checkpoint.folder={folder / name}",
            "data.tokenizer.path=bytes",
            "optim.lr=1e-2",
            "duration=4steps",
            *extra,
        )
        build_trainer(resolve(recipe, settings), World(device=torch.device("cpu"))).fit()
        found[name] = folder / name
    return found


SEQUENCES = [(tuple(b"%d+1=" % n), tuple(b"%d" % (n * n))) for n in range(12)]


@pytest.mark.parametrize("pooling", ["last", "answer"])
def test_scores_are_the_models_own(models: dict[str, Path], pooling: str) -> None:
    client, own = RewardModel(str(models[pooling]), BYTES, deadline_s=10.0), load_model(str(models[pooling]))
    try:
        for _ in range(2):
            for score, (prompt, answer) in zip(client.score(SEQUENCES), SEQUENCES, strict=True):
                with torch.no_grad():
                    values_T = own(torch.tensor([[*prompt, *answer]])).reshape(-1)
                wanted = values_T[-1] if pooling == "last" else values_T[len(prompt) :].mean()
                assert score.value == pytest.approx(float(wanted), abs=1e-5)
    finally:
        client.close()


def scored(settings: dict[str, str], on_error: str = "exclude") -> AnswerScorer:
    verifiers = (
        VerifierConfig(name="model", settings=dict(settings), weight=2.0),
        VerifierConfig(name="length", settings={"low": 0, "high": 4}),
    )
    return AnswerScorer.of(RewardsConfig(verifiers=verifiers, on_error=on_error), BYTES)  # type: ignore[arg-type]


def samples() -> list[Sample]:
    return [
        Sample(
            id=SampleId(group=number, member=0),
            ids=answer,
            logp=(0.0,) * len(answer),
            raw_logp=None,
            spans=(TokenSpan(start=0, stop=len(answer), version=0),),
            finish="stop",
        )
        for number, (_, answer) in enumerate(SEQUENCES)
    ]


def test_a_reward_model_stands_beside_other_verifiers_and_its_death_is_no_reward(models: dict[str, Path]) -> None:
    scorer = scored({"from": str(models["last"])})
    prompts, truths = [prompt for prompt, _ in SEQUENCES], [None] * len(SEQUENCES)
    try:
        first = scorer.score(samples(), prompts, truths)
        assert all(each.reward == pytest.approx(2 * each.rewards["model"] + each.rewards["length"]) for each in first)  # type: ignore[operator]
        assert scorer._model is not None
        process = scorer._model._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        killed = scorer.score(samples(), prompts, truths)
        assert all(each.rewards["model"] is None and each.reward != each.reward for each in killed)
        assert all(each.rewards["length"] is not None for each in killed)
        again = scorer.score(samples(), prompts, truths)
        assert [each.reward for each in again] == [each.reward for each in first]
    finally:
        scorer.close()


def test_a_late_model_is_ended(models: dict[str, Path]) -> None:
    client = RewardModel(str(models["last"]), BYTES, deadline_s=0.05)
    try:
        client.score(SEQUENCES[:1])
        process = client._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        (score,) = client.score(SEQUENCES[:1])
        assert (score.value, score.kind) == (None, "timeout")
        assert client._process is None
    finally:
        client.close()


def test_wrong_models_and_settings_are_refused(models: dict[str, Path]) -> None:
    for settings, why in (
        ({"from": str(models["policy"])}, "is not a reward model"),
        ({"from": "nowhere"}, "no model at nowhere"),
        ({"from": str(models["last"]), "pooling": "first"}, "`pooling` of verifier `model` is `first`"),
        ({}, "invalid settings of verifier `model`"),
        ({"from": "x", "path": "y"}, "invalid settings of verifier `model`"),
    ):
        with pytest.raises(WindlassError, match=why):
            scored(settings)

    class Other:
        identity = "other"

    with pytest.raises(SpecError, match="is not the policy's"):
        RewardModel(str(models["last"]), Other(), deadline_s=1.0)  # type: ignore[arg-type]
