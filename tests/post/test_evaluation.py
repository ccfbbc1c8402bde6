"""Evaluation of answers: pass@k, the same in training and on a checkpoint, without a trace in what is trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.post.addition import TINY_MODEL, write_pairs, write_sums
from windlass.cli.verbs.run.ckpt import ckpt_command
from windlass.core.errors import SpecError, UsageError
from windlass.post.evaluation import EvaluateAnswers, evaluate_checkpoint, pass_at
from windlass.post.objectives.batch import TokenBatch
from windlass.testing.distributed import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.generation.continuation import continue_texts
from windlass.train.parallel.world import World
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

ANSWERS = ("max_new_tokens=4", "num_slots=4", "reward.verifiers=[exact]")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "held.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in ((1, 2), (3, 4), (5, 1), (2, 2), (9, 9))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sft(folder: Path, name: str, *overrides: str) -> ResolvedRecipe:
    settings = (
        TINY_MODEL,
        "data.template=plain",
        "data.max_length=32",
        "data.microbatch_tokens=256",
        f"data.mix.0.source={write_sums(folder / 'sums.jsonl', 20)}",
        f"data.cache={folder / 'cache'}",
        "data.tokenizer.path=bytes",
        "data.batch_rows=10",
        "schedule.warmup=0steps",
        "optim.lr=1e-2",
        "duration=6steps",
        f"checkpoint.folder={folder / name}",
        "callbacks={curve: {kind: jsonl}}",
    )
    return resolve("sft", (*settings, *overrides))


def evaluated(prompts: Path, *settings: str) -> str:
    inner = ", ".join(["max_new_tokens: 4", "num_slots: 4", "reward: {verifiers: [exact]}", *settings])
    return f"evaluate={{mix: [{{source: {prompts}}}], {inner}}}"


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def curve_of(folder: Path) -> dict[int, dict[str, float]]:
    """The metrics of `eval/` by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {line["step"]: {name: value for name, value in line.items() if name.startswith("eval/")} for line in lines}
    return {step: values for step, values in found.items() if values}


def weights_of(trainer: Trainer[TokenBatch]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.module.model.state_dict().items()}


@pytest.mark.parametrize(("num_samples", "num_passed"), [(5, 0), (5, 2), (5, 5), (8, 1), (3, 3)])
def test_pass_at_k_is_the_share_of_subsets_with_a_passing_answer(num_samples: int, num_passed: int) -> None:
    answers = [place < num_passed for place in range(num_samples)]
    for k in range(1, num_samples + 1):
        subsets = list(combinations(answers, k))
        assert pass_at(k, num_samples, num_passed) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_training_is_the_same_to_the_last_bit_with_and_without_evaluation(tmp_path: Path, prompts: Path) -> None:
    plain = trainer_of(sft(tmp_path, "plain"))
    plain.fit()
    often = trainer_of(sft(tmp_path, "often", evaluated(prompts, "every: 2steps", "at_start: true")))
    often.fit()
    wanted = weights_of(plain)
    assert all(torch.equal(value, wanted[name]) for name, value in weights_of(often).items())
    assert sorted(curve_of(tmp_path / "often")) == [0, 2, 4, 6]
    assert not curve_of(tmp_path / "plain")


def test_a_resumed_run_evaluates_the_same(tmp_path: Path, prompts: Path) -> None:
    sampled = evaluated(prompts, "every: 2steps", "samples: 4", "temperature: 1.0", "pass_at: [1, 4]")
    trainer_of(sft(tmp_path, "whole", sampled)).fit()
    trainer_of(sft(tmp_path, "parts", sampled, "stop=3steps")).fit()
    trainer_of(sft(tmp_path, "parts", sampled)).fit()
    whole, parts = curve_of(tmp_path / "whole"), curve_of(tmp_path / "parts")
    del parts[3]  # the first part's end
    assert parts == whole
    assert all(values["eval/pass@4"] >= values["eval/pass@1"] for values in whole.values())


def test_a_checkpoint_gets_the_metrics_of_the_run_that_wrote_it(tmp_path: Path, prompts: Path) -> None:
    outcome = trainer_of(sft(tmp_path, "run", "duration=40steps", evaluated(prompts))).fit()
    recorded = curve_of(tmp_path / "run")[40]
    found = evaluate_checkpoint(outcome.checkpoint, str(prompts), ANSWERS)
    assert found == recorded
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    texts = continue_texts(outcome.checkpoint, [row["prompt"] for row in rows], max_new_tokens=4)
    right = [text.strip() == row["answer"] for text, row in zip(texts, rows, strict=True)]
    assert found["eval/pass@1"] == sum(right) / len(rows)
    assert found["eval/unscored"] == 0


def test_answers_that_cannot_be_scored_are_left_out(tmp_path: Path, prompts: Path) -> None:
    outcome = trainer_of(sft(tmp_path, "run")).fit()
    (tmp_path / "mine.py").write_text("def odd(answer, truth):\n    return 1 / (int(truth) % 2)\n")
    settings = (*ANSWERS[:2], f"reward.verifiers=['{tmp_path / 'mine.py'}:odd']")
    found = evaluate_checkpoint(outcome.checkpoint, str(prompts), settings)
    assert found["eval/unscored"] == 3  # of the even sums
    assert found["eval/reward"] == found["eval/pass@1"] == 1.0


def _trained(
    world: World, recipe: str, overrides: tuple[str, ...]
) -> tuple[dict[int, dict[str, float]], dict[str, list[float]]]:
    """The metrics that a process found by step, and the final weights."""
    trainer = build_trainer(resolve(recipe, overrides), world)
    found: dict[int, dict[str, float]] = {}
    for callback in trainer.callbacks.values():
        if isinstance(callback, EvaluateAnswers):

            def measured(measure: Callable[[], Mapping[str, float] | None] = callback.measure) -> Mapping[str, float]:
                return found.setdefault(trainer.step, dict(measure() or {}))

            callback.measure = measured  # type: ignore[method-assign]
    trainer.fit()
    return found, {name: value.flatten().tolist() for name, value in trainer.module.state_dict()["model"].items()}


@pytest.mark.parametrize("recipe", ["sft", "grpo", "distill"])
def test_processes_share_the_prompts_of_an_evaluation(tmp_path: Path, prompts: Path, recipe: str) -> None:
    base = sft(tmp_path, "base", "duration=30steps")
    trainer_of(base).fit()
    answers = (
        "samples: 3, temperature: 0.8, pass_at: [1, 2], every: 1steps, at_start: true, reward: {verifiers: [exact]}"
    )
    settings = (
        f"model.from={tmp_path / 'base'}",
        "data.template=plain",
        "data.max_length=32" if recipe == "sft" else "data.max_length=16",
        f"data.mix.0.source={tmp_path / 'sums.jsonl' if recipe == 'sft' else prompts}",
        f"data.cache={tmp_path / 'cache'}",
        "data.batch_rows=4",
        "duration=2steps",
        f"evaluate={{mix: [{{source: {prompts}}}], max_new_tokens: 4, num_slots: 4, {answers}}}",
        *{"sft": (), "grpo": ("reward.verifiers=[exact]",), "distill": (f"teacher.from={tmp_path / 'base'}",)}[recipe],
        *(() if recipe == "sft" else ("rollout.max_new_tokens=4", "rollout.num_slots=4")),
    )
    both = (*settings, f"checkpoint.folder={tmp_path / 'two'}")
    first, second = run_distributed_test(_trained, num_processes=2, args=(recipe, both), timeout_s=600.0)
    assert first == second
    assert sorted(first[0]) == [0, 1, 2]
    alone, _ = _trained(World(device=torch.device("cpu")), recipe, (*settings, f"checkpoint.folder={tmp_path / 'one'}"))
    assert first[0][0] == alone[0]  # of the same weights


@pytest.mark.parametrize("recipe", ["dpo", "grpo"])
def test_preferences_and_policies_are_evaluated_too(tmp_path: Path, prompts: Path, recipe: str) -> None:
    trainer_of(sft(tmp_path, "base")).fit()
    source = write_pairs(tmp_path / "pairs.jsonl", 10) if recipe == "dpo" else prompts
    own = ("rollout.max_new_tokens=4", "rollout.num_slots=4", "reward.verifiers=[exact]") if recipe == "grpo" else ()
    scored = "reward: {verifiers: [exact]}, " if recipe == "dpo" else ""  # grpo takes its own verifiers
    settings = (
        f"model.from={tmp_path / 'base'}",
        "data.template=plain",
        "data.max_length=32",
        f"data.mix.0.source={source}",
        f"data.cache={tmp_path / 'cache'}",
        "data.batch_rows=5",
        "duration=2steps",
        f"checkpoint.folder={tmp_path / recipe}",
        "callbacks={curve: {kind: jsonl}}",
        f"evaluate={{mix: [{{source: {prompts}}}], {scored}max_new_tokens: 4, every: 1steps}}",
    )
    trainer_of(resolve(recipe, (*settings, *own))).fit()
    assert sorted(curve_of(tmp_path / recipe)) == [1, 2]
    trainer_of(resolve(recipe, (*settings, *own, "no_evals=true", f"checkpoint.folder={tmp_path / 'none'}"))).fit()
    assert not curve_of(tmp_path / "none")


def test_a_reward_model_is_measured_on_pairs(tmp_path: Path) -> None:
    trainer_of(sft(tmp_path, "base")).fit()
    pairs = write_pairs(tmp_path / "pairs.jsonl", 20)
    settings = (
        f"model.from={tmp_path / 'base'}",
        "data.template=plain",
        "data.max_length=32",
        f"data.mix.0.source={pairs}",
        f"data.cache={tmp_path / 'cache'}",
        "data.batch_rows=10",
        "duration=60steps",
        "optim.lr=3e-3",
        "schedule.warmup=0steps",
        f"checkpoint.folder={tmp_path / 'reward'}",
    )
    trainer_of(resolve("reward", settings)).fit()
    found = evaluate_checkpoint(str(tmp_path / "reward"), str(pairs))
    assert found["eval/accuracy"] > 0.9
    assert found["eval/margin"] > 0
    with pytest.raises(UsageError, match="`num_slots` has no effect with a reward model"):
        evaluate_checkpoint(str(tmp_path / "reward"), str(pairs), ("num_slots=2",))
    with pytest.raises(SpecError, match="a reward model answers no prompts"):
        resolve("reward", (*settings, evaluated(pairs)))


def test_the_command_prints_reports_and_writes(tmp_path: Path, prompts: Path) -> None:
    outcome = trainer_of(sft(tmp_path, "run")).fit()
    words = ["evaluate", outcome.checkpoint, str(prompts), *ANSWERS, "--name", "sft", "--out", str(tmp_path / "m.json")]
    done = CliRunner().invoke(ckpt_command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "m.json").read_text())
    assert {name.replace("/sft", ""): value for name, value in written.items()} == evaluate_checkpoint(
        outcome.checkpoint, str(prompts), ANSWERS
    )
    assert "eval/sft/pass@1" in done.output


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("samples=2", *ANSWERS), "all 2 answers to a prompt are equal"),
        (("pass_at=2", *ANSWERS), "pass@2 needs 2 answers"),
        (("every=5steps", *ANSWERS), "`every` has no effect outside training"),
        ((*ANSWERS, "reward.shuffle=true"), "not shaped, normalised or shuffled"),
        ((*ANSWERS, "reward.length_weight=0.1"), "not shaped, normalised or shuffled"),
        ((), "nothing scores the answers"),
        (("max_new_tokens=61", "reward.verifiers=[exact]"), "the model's maximum is 64"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, prompts: Path, settings: tuple[str, ...], why: str) -> None:
    outcome = trainer_of(sft(tmp_path, "run", "duration=1step")).fit()
    with pytest.raises((SpecError, UsageError), match=why):
        evaluate_checkpoint(outcome.checkpoint, str(prompts), settings)


def test_a_recipe_names_what_scores(tmp_path: Path, prompts: Path) -> None:
    with pytest.raises(SpecError, match="nothing scores the answers"):
        sft(tmp_path, "run", f"evaluate={{mix: [{{source: {prompts}}}]}}")
    with pytest.raises(SpecError, match="no held-out prompts"):
        sft(tmp_path, "run", "evaluate={mix: [], reward: {verifiers: [exact]}}")
