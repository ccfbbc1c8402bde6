"""Reinforcement learning from a recipe: rewards rise, a resumed run is the same run, drops are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.post.addition import TINY_MODEL, write_sums
from windlass.core.errors import NotFoundError, SpecError
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.objectives.batch import TokenBatch
from windlass.train.build import build_trainer
from windlass.train.parallel.world import World
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

COMMON = ("data.template=plain", "schedule.warmup=0steps", "~callbacks")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the form of an answer, and a few sums."""
    folder = tmp_path_factory.mktemp("base")
    overrides = (
        TINY_MODEL,
        *COMMON,
        "data.max_length=32",
        "data.microbatch_tokens=256",
        f"data.mix.0.source={write_sums(folder / 'sums.jsonl', 20)}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.tokenizer.path=bytes",
        "data.batch_rows=10",
        "optim.lr=1e-2",
        "duration=35steps",
    )
    trainer_of(resolve("sft", overrides)).fit()
    return folder / "run"


def grpo(folder: Path, start: Path, *overrides: str) -> ResolvedRecipe:
    source = folder / "prompts.jsonl"
    if not source.exists():
        rows = ((number * 7 % 10, number * 3 % 10) for number in range(20))
        source.write_text("".join(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in rows))
    settings = (
        f"model.from={start}",
        *COMMON,
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.max_length=16",
        "data.microbatch_tokens=1024",
        "data.batch_rows=10",
        "rollout.max_new_tokens=4",
        "rollout.num_slots=16",
        "reward.verifiers=[exact]",
        "optim.lr=5e-3",
        "duration=20steps",
    )
    return resolve("grpo", (*settings, *overrides))


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def rollouts_of(trainer: Trainer[TokenBatch]) -> RolloutLoader:
    assert isinstance(trainer.loader, RolloutLoader)
    return trainer.loader


def test_rewards_rise(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base))
    next(iter(trainer.loader))
    before = rollouts_of(trainer).metrics["rollout/reward"]
    trainer = trainer_of(grpo(tmp_path, base))
    assert trainer.fit().is_finished
    after = rollouts_of(trainer).metrics["rollout/reward"]
    assert before < 0.6
    assert after > before + 0.2


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    whole = trainer_of(grpo(tmp_path, base, "duration=5steps", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, "duration=5steps", "stop=2steps")).fit()
    second = trainer_of(grpo(tmp_path, base, "duration=5steps"))
    second.fit()
    assert second.step == 5
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert rollouts_of(second).metrics == rollouts_of(whole).metrics


def test_the_engine_and_the_learner_agree_on_log_probabilities(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, "rollout.temperature=0.7", "rollout.drop_constant_groups=false"))
    batch = next(iter(trainer.loader))
    for part in batch.parts:
        with torch.no_grad():
            found = trainer.module._forward(part, trainer.module._log_probs)  # type: ignore[attr-defined]
        difference_BT = (found.logp - part.streams["behaviour"]).abs() * part.weights["policy"]
        assert float(difference_BT.max()) < 1e-4


def test_groups_without_variance_are_dropped_and_counted(tmp_path: Path, base: Path) -> None:
    (tmp_path / "mine.py").write_text("def always(answer, truth):\n    return 1.0\n")
    trainer = trainer_of(grpo(tmp_path, base, f"reward.verifiers=[{tmp_path / 'mine.py'}:always]", "duration=1step"))
    before = {name: value.clone() for name, value in trainer.module.model.state_dict().items()}
    trainer.fit()
    metrics = rollouts_of(trainer).metrics
    assert metrics["rollout/constant_groups"] == 10
    assert metrics["rollout/trained_answers"] == 0
    assert all(torch.equal(value, before[name]) for name, value in trainer.module.model.state_dict().items())


def test_answers_that_cannot_be_scored_are_no_zeros(tmp_path: Path, base: Path) -> None:
    (tmp_path / "mine.py").write_text("def odd(answer, truth):\n    return 1 / (answer.num_tokens % 2)\n")
    trainer = trainer_of(grpo(tmp_path, base, f"reward.verifiers=[{tmp_path / 'mine.py'}:odd]"))
    batch = next(iter(trainer.loader))
    metrics = rollouts_of(trainer).metrics
    assert metrics["rollout/unscored"] > 0
    assert metrics["rollout/reward"] == 1.0  # the mean of those that were scored
    assert all(part.num_sequences == 0 for part in batch.parts)  # equal rewards: nothing to learn


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("reward.verifiers=[]",), "no verifier"),
        (("reward.verifiers=[exact, exact]",), "listed twice"),
        (("objective.kl.coefficient=0.1",), "needs a reference model"),
        (("data.microbatch_tokens=18",), "more than a microbatch"),
        (("rollout.max_new_tokens=60",), "the model's maximum is 64"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, base: Path, overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        trainer_of(grpo(tmp_path, base, *overrides))


def test_an_unknown_verifier_gets_a_near_one(tmp_path: Path, base: Path) -> None:
    with pytest.raises(NotFoundError, match="unknown verifier `gsm8`"):
        trainer_of(grpo(tmp_path, base, "reward.verifiers=[gsm8]"))


@pytest.mark.parametrize("override", ["rollout.group_size=4", "data.is_shuffled=false"])
def test_a_checkpoint_of_other_rollouts_is_refused(tmp_path: Path, base: Path, override: str) -> None:
    trainer_of(grpo(tmp_path, base, "duration=2steps", "stop=1step")).fit()
    with pytest.raises(SpecError, match=f"`{override.partition('=')[0]}` changed since the checkpoint") as caught:
        trainer_of(grpo(tmp_path, base, "duration=2steps", override)).fit()
    assert caught.value.code == "tokens-changed"
