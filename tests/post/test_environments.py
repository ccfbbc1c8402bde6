"""Reinforcement learning with environments from a recipe: rewards rise, resumed runs are the same, samples show turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.post.addition import TINY_MODEL
from tests.post.test_grpo import base as base  # noqa: PLC0414 - a fixture
from tests.post.test_grpo import first_batch, grpo, rollouts_of, trainer_of
from windlass.core.errors import SpecError
from windlass.post import read_samples
from windlass.post.evaluation import EvaluateAnswers
from windlass.post.objectives.module import ObjectiveModule

PATIENT = "tests.post.environments.toys:Patient"
TALKER = "tests.post.environments.toys:Talker"
HOSTILE = "tests.post.environments.toys:Hostile"

EPISODES = (
    f"rollout.environments=[{{name: '{PATIENT}', max_turns: 2}}]",
    "reward.verifiers=[]",
    "rollout.max_new_tokens=12",
)


def test_rewards_of_an_environment_rise(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, "duration=12steps"))
    first_batch(trainer)
    before = rollouts_of(trainer).metrics[f"environment/reward_{PATIENT}"]
    rollouts_of(trainer).close()
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, "duration=12steps"))
    assert trainer.fit().is_finished
    metrics = rollouts_of(trainer).metrics
    assert metrics[f"environment/reward_{PATIENT}"] > before + 0.1
    assert metrics[f"environment/unscored_{PATIENT}"] == 0
    assert metrics["rollout/reward"] == metrics["rollout/reward_environment"]
    stored = [each.scored.sample for each in read_samples(tmp_path / "run", step=0)]
    assert all(sample.episode is not None for sample in stored)
    assert {"policy", "tool"} <= {span.origin for sample in stored for span in sample.spans}


def test_a_stopped_run_with_episodes_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    turns = (*EPISODES, "advantage.turns=process", "duration=3steps")
    whole = trainer_of(grpo(tmp_path, base, *turns, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, *turns, "stop=1steps")).fit()
    second = trainer_of(grpo(tmp_path, base, *turns))
    second.fit()
    assert second.step == 3
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert rollouts_of(second).metrics == rollouts_of(whole).metrics


@pytest.mark.parametrize("shared", ["true", "false"])
def test_the_learner_agrees_on_log_probabilities_of_all_turns(tmp_path: Path, base: Path, shared: str) -> None:
    settings = (*EPISODES, "rollout.drop_constant_groups=false", f"rollout.share_prompts={shared}")
    trainer = trainer_of(grpo(tmp_path, base, *settings, "data.batch_rows=4"))
    batch = first_batch(trainer)
    num_trained = 0.0
    for part in batch.parts:
        assert isinstance(trainer.module, ObjectiveModule)
        with torch.no_grad():
            found: Any = trainer.module._forward(part, trainer.module._log_probs)
        difference_BT = (found.logp - part.streams["behaviour"]).abs() * part.weights["policy"]
        assert float(difference_BT.max()) < 1e-5
        num_trained += float(part.weights["policy"].sum())
    stored = [each.scored.sample for each in read_samples(tmp_path / "run", step=0)]
    assert num_trained == sum(sample.num_policy_tokens for sample in stored)


def test_rows_choose_environments_and_others_are_divided(tmp_path: Path, base: Path) -> None:
    rows = [
        {"prompt": f"{n}+1=", "answer": str(n + 1), **({"environment": TALKER} if n < 3 else {})} for n in range(10)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = f"rollout.environments=[{{name: '{PATIENT}', max_turns: 2}}, {{name: '{TALKER}', fraction: 0, settings: {{turns: 2}}}}]"
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, both, "rollout.colocate=weights"))
    first_batch(trainer)
    metrics = rollouts_of(trainer).metrics
    size = 8
    assert metrics[f"environment/answers_{TALKER}"] == 3 * size
    assert metrics[f"environment/answers_{PATIENT}"] == 7 * size
    assert 0.25 <= metrics[f"environment/reward_{TALKER}"] <= 0.5
    wrong = [{**row, "environment": "other"} for row in rows]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in wrong))
    with pytest.raises(SpecError, match="names the environment `other`"):
        first_batch(trainer_of(grpo(tmp_path, base, *EPISODES, f"checkpoint.folder={tmp_path / 'other'}")))


def test_episodes_that_fail_are_unscored_and_not_learned(tmp_path: Path, base: Path) -> None:
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1), "trick": "die" if n % 2 else "none"} for n in range(10)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hostile = f"rollout.environments=['{HOSTILE}']"
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, hostile, "rollout.drop_constant_groups=false"))
    first_batch(trainer)
    metrics = rollouts_of(trainer).metrics
    assert metrics[f"environment/unscored_{HOSTILE}"] == metrics["rollout/unscored"] == 40
    assert metrics["rollout/trained_answers"] == 40
    assert metrics["rollout/reward"] == 1.0
    errors = {each.scored.sample.episode.error for each in read_samples(tmp_path / "run") if each.scored.sample.episode}
    assert errors == {"", "the worker ended with exit code 7"}


def test_workers_run_environments(tmp_path: Path, base: Path) -> None:
    overlap = ("async.bound=1", "objective.correction={clamp_max: 2}", "duration=3steps", "data.batch_rows=4")
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, *overlap))
    assert trainer.fit().is_finished
    stored = [each.scored.sample for each in read_samples(tmp_path / "run") if each.step is not None]
    assert len(stored) == 3 * 4 * 8
    assert all(sample.episode is not None and not sample.episode.error for sample in stored)


def test_stored_episodes_are_learned_from_again(tmp_path: Path, base: Path) -> None:
    correction = "objective.correction={clamp_max: 2}"
    first = trainer_of(grpo(tmp_path, base, *EPISODES, "duration=2steps", "data.batch_rows=4", correction))
    first.fit()
    replay = (f"rollout.replay={tmp_path / 'run'}", f"checkpoint.folder={tmp_path / 'replay'}", "data.batch_rows=4")
    second = trainer_of(grpo(tmp_path, base, *EPISODES, "duration=2steps", *replay, correction))
    second.fit()
    state = first.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())


def test_an_evaluation_has_the_environments_of_training(tmp_path: Path, base: Path) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(6)))
    evaluate = f"evaluate={{mix: [{{source: {held_out}}}], max_new_tokens: 12}}"
    trainer = trainer_of(grpo(tmp_path, base, *EPISODES, evaluate, "duration=1step", "data.batch_rows=2"))
    (callback,) = [each for each in trainer.callbacks.values() if isinstance(each, EvaluateAnswers)]
    values = dict(callback.measure() or {})
    callback.on_end()
    assert 0.0 <= values["eval/pass@1"] <= 1.0
    assert values["eval/unscored"] == 0


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ((f"rollout.environments=['{PATIENT}', '{PATIENT}']",), "listed twice"),
        ((f"rollout.environments=[{{name: '{PATIENT}', fraction: 0}}]",), "has the fraction 0"),
        (("reward.verifiers=[]",), "no verifier"),
        (("advantage.turns=process",), "no environment gives rewards of turns"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpecError) as found:
        grpo(tmp_path, tmp_path, TINY_MODEL, "data.tokenizer.path=bytes", *overrides)
    assert why in str(found.value)
