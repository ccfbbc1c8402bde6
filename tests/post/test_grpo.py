"""Reinforcement learning from a recipe: rewards rise, a resumed run is the same run, drops are counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.post.addition import TINY_MODEL, write_sums
from windlass.core.errors import NotFoundError, SpecError
from windlass.post.control import build
from windlass.post.control.config import PoolsConfig, PoolWeights, RetireConfig
from windlass.post.control.prompts import PromptPools
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.objectives.batch import TokenBatch
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.samples.reader import read_samples
from windlass.train.build import build_trainer
from windlass.train.data.protocol import NotReady
from windlass.train.hf.sources import load_model
from windlass.train.modules.protocol import StepFacts
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
        *([] if TINY_MODEL in overrides else [f"model.from={start}"]),
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


def first_batch(trainer: Trainer[TokenBatch]) -> TokenBatch:
    batch = next(batch for batch in rollouts_of(trainer) if not isinstance(batch, NotReady))
    rollouts_of(trainer).close()  # it locks the log of samples
    return batch


def test_rewards_rise(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base))
    first_batch(trainer)
    before = rollouts_of(trainer).metrics["rollout/reward"]
    rollouts_of(trainer).close()
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


@pytest.mark.parametrize("what", ["cache", "weights"])
def test_a_run_whose_engine_lends_its_memory_is_the_same_run(
    tmp_path: Path, base: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it goes on from a run that did not."""
    whole = trainer_of(grpo(tmp_path, base, "duration=3steps", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, "duration=3steps", "stop=1steps")).fit()
    engines: list[EmbeddedEngine] = []

    def engine_of(*args: Any, **settings: Any) -> EmbeddedEngine:
        engines.append(EmbeddedEngine(*args, **settings))
        return engines[-1]

    monkeypatch.setattr(build, "EmbeddedEngine", engine_of)
    lending = trainer_of(grpo(tmp_path, base, "duration=3steps", f"rollout.colocate={what}"))
    held: list[tuple[int, ...]] = []
    train, module = lending.module.train_batch, lending.module

    def train_batch(batch: TokenBatch, facts: StepFacts) -> object:
        engine = engines[0]
        tensors = engine._slots.tensors(), engine._model.parameters()
        held.append(tuple(sum(each.untyped_storage().nbytes() for each in part) for part in tensors))
        return train(batch, facts)

    monkeypatch.setattr(module, "train_batch", train_batch)
    lending.fit()
    weights = 0 if what == "weights" else sum(each.numel() * 4 for each in module.model.parameters())
    assert held == [(0, weights)] * 2
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in module.model.state_dict().items())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("rollout.only=true",), "`colocate` has no effect with `only`"),
        (("async.bound=1", "objective.correction={clamp_max: 2}"), "rollout.colocate has no effect with async.bound 1"),
    ],
)
def test_colocation_that_would_free_nothing_is_refused(
    tmp_path: Path, base: Path, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        grpo(tmp_path, base, "rollout.colocate=cache", *overrides)


def test_the_engine_and_the_learner_agree_on_log_probabilities(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, "rollout.temperature=0.7", "rollout.drop_constant_groups=false"))
    batch = first_batch(trainer)
    for part in batch.parts:
        with torch.no_grad():
            found = trainer.module._forward(part, trainer.module._log_probs)  # type: ignore[attr-defined]
        difference_BT = (found.logp - part.streams["behaviour"]).abs() * part.weights["policy"]
        assert float(difference_BT.max()) < 1e-4


@pytest.mark.parametrize("more", [(), ("objective.kl.coefficient=0.5",), ("rollout.epochs=2",)])
def test_groups_without_variance_are_dropped_and_counted(tmp_path: Path, base: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "mine.py").write_text("def always(answer, truth):\n    return 1.0\n")
    always = f"reward.verifiers=[{tmp_path / 'mine.py'}:always]"
    trainer = trainer_of(grpo(tmp_path, base, always, "duration=1step", *more))
    before = {name: value.clone() for name, value in trainer.module.model.state_dict().items()}
    trainer.fit()
    metrics = rollouts_of(trainer).metrics
    assert metrics["rollout/constant_groups"] == 10
    assert metrics["rollout/trained_answers"] == 0
    assert all(torch.equal(value, before[name]) for name, value in trainer.module.model.state_dict().items())


def test_answers_that_cannot_be_scored_are_no_zeros(tmp_path: Path, base: Path) -> None:
    (tmp_path / "mine.py").write_text("def odd(answer, truth):\n    return 1 / (answer.num_tokens % 2)\n")
    trainer = trainer_of(grpo(tmp_path, base, f"reward.verifiers=[{tmp_path / 'mine.py'}:odd]"))
    batch = first_batch(trainer)
    metrics = rollouts_of(trainer).metrics
    assert metrics["rollout/unscored"] > 0
    assert metrics["rollout/reward"] == 1.0  # the mean of those that were scored
    assert all(part.num_sequences == 0 for part in batch.parts)  # equal rewards: nothing to learn


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("reward.verifiers=[]",), "no verifier"),
        (("reward.verifiers=[exact, exact]",), "listed twice"),
        (("objective.kl.coefficient=0.1", TINY_MODEL, "data.tokenizer.path=bytes"), "needs a reference model"),
        (("reference.from=x",), "`reference` has no effect"),
        (("objective.kl.coefficient=0.1", "reference.from=x"), "no model at x"),
        (("data.microbatch_tokens=18",), "more than a microbatch"),
        (("rollout.pools={easy: 0.5, hard: 0.5}",), "both easy and hard"),
        (("rollout.refills=1", "rollout.drop_constant_groups=false"), "`refills` replaces groups that are dropped"),
        (("rollout.retire.rate=1", "rollout.replay=x"), "`retire` chooses prompts"),
        (("rollout.top_p=0.9", "rollout.epochs=2"), "sampled from the likely ones"),
        (("rollout.top_k=5", "objective.correction.clamp_max=2"), "sampled from the likely ones"),
        (("reward.overlong.buffer=5",), "longer than an answer of 4"),
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


@pytest.mark.parametrize("at", ["start", "elsewhere"])
def test_the_kl_penalty_is_taken_to_the_reference_model(tmp_path: Path, base: Path, at: str) -> None:
    overrides = ["objective.kl.coefficient=0.5", "rollout.temperature=0.7", "rollout.drop_constant_groups=false"]
    overrides.append("rollout.share_prompts=false")  # a row is an answer
    if at == "elsewhere":
        trainer_of(grpo(tmp_path, base, "duration=2steps", f"checkpoint.folder={tmp_path / 'other'}")).fit()
        overrides.append(f"reference.from={tmp_path / 'other'}")
    trainer = trainer_of(grpo(tmp_path, base, *overrides))
    reference = load_model(str(base if at == "start" else tmp_path / "other"))
    with torch.no_grad():
        for parameter in trainer.module.model.parameters():
            parameter.mul_(1.05)  # the policy is not the reference any more
    module = trainer.module
    assert isinstance(module, ObjectiveModule)
    for part in first_batch(trainer).parts:
        own, other = (_logp(model, part.tokens_BT, part.labels_BT, 0.7) for model in (module.model, reference))
        counts_BT = part.weights["policy"] > 0
        torch.testing.assert_close(part.streams["reference"][counts_BT], other[counts_BT], rtol=1e-5, atol=1e-5)
        log_ratio_N = (own - other)[counts_BT].double()
        wanted = (torch.exp(-log_ratio_N) - 1 + log_ratio_N).sum()
        torch.testing.assert_close(module._sums(part).metrics["kl"], wanted, rtol=1e-3, atol=1e-4)


def _logp(model: torch.nn.Module, tokens_BT: Tensor, labels_BT: Tensor, temperature: float) -> Tensor:
    with torch.no_grad():
        logs_BTV: Tensor = (model(tokens_BT) / temperature).log_softmax(dim=-1)
    return logs_BTV.gather(2, labels_BT.clamp(min=0)[..., None])[..., 0]


def test_a_kl_penalty_keeps_the_policy_near_its_start(tmp_path: Path, base: Path) -> None:
    distances = []
    for coefficient in (0.0, 3.0):
        folder = f"checkpoint.folder={tmp_path / str(coefficient)}"
        trainer = trainer_of(grpo(tmp_path, base, folder, f"objective.kl.coefficient={coefficient}"))
        trainer.fit()
        part = first_batch(trainer_of(grpo(tmp_path, base, folder, "rollout.drop_constant_groups=false"))).parts[0]
        models = (trainer.module.model, load_model(str(base)))
        own, start = (_logp(model, part.tokens_BT, part.labels_BT, 1.0) for model in models)
        distances.append(float(((own - start).square() * part.weights["policy"]).sum()))
    assert distances[1] < 0.5 * distances[0]


def test_shaping_and_limits_of_sampling_reach_the_batch(tmp_path: Path, base: Path) -> None:
    settings = ("rollout.top_k=1", "reward.overlong={buffer: 4, penalty: 1}", "rollout.drop_constant_groups=false")
    trainer = trainer_of(grpo(tmp_path, base, *settings))
    batch = first_batch(trainer)
    assert all(not part.streams["behaviour"].any() for part in batch.parts)  # the only token has probability 1
    assert rollouts_of(trainer).metrics["rollout/shaping"] < 0
    assert rollouts_of(trainer).metrics["rollout/reward"] >= 0  # of the verifiers alone


MINIBATCHES = ("rollout.minibatches=2", "rollout.epochs=2", "objective.kl.coefficient=0.01")


def test_a_batch_is_learned_in_several_steps_of_whole_groups(tmp_path: Path, base: Path) -> None:
    plain = ("rollout.drop_constant_groups=false", "rollout.share_prompts=false")  # a row is an answer
    trainer = trainer_of(grpo(tmp_path, base, *MINIBATCHES, *plain))
    loader = rollouts_of(trainer)
    assert loader.batches_per_epoch == 8
    batches = (batch for batch in loader if not isinstance(batch, NotReady))
    steps = [next(batches) for _ in range(4)]
    assert steps[2] is steps[0]
    assert steps[3] is steps[1]
    assert [sum(part.num_sequences for part in step.parts) for step in steps[:2]] == [40, 40]
    for step in steps[:2]:
        counts = Counter(tuple(row[:4]) for part in step.parts for row in part.tokens_BT.tolist())
        assert all(count % 8 == 0 for count in counts.values())  # whole groups
    for step in steps[:2]:
        for part in step.parts:
            logp_BT = _logp(trainer.module.model, part.tokens_BT, part.labels_BT, 1.0)
            difference_BT = (logp_BT - part.streams["proximal"]).abs() * part.weights["policy"]
            assert float(difference_BT.max()) < 1e-5
    assert next(batches) is not steps[0]
    assert loader.position == 20


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_run_that_stops_within_a_batch_resumes_bit_for_bit(tmp_path: Path, base: Path, stop: int) -> None:
    settings = (*MINIBATCHES, "duration=8steps")
    whole = trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, *settings, f"stop={stop}steps")).fit()
    second = trainer_of(grpo(tmp_path, base, *settings))
    second.fit()
    assert second.step == 8
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert rollouts_of(second).metrics == rollouts_of(whole).metrics


def test_a_checkpoint_within_a_batch_has_no_samples_if_the_log_has_them(tmp_path: Path, base: Path) -> None:
    settings = (*MINIBATCHES, "duration=8steps")
    first = trainer_of(grpo(tmp_path, base, *settings, "stop=2steps"))
    first.fit()
    state = rollouts_of(first).state_dict()
    num_learned = 80 * 4  # answers of a batch have at most 4 tokens
    assert 0 < len(str(state["proximal"])) <= (num_learned * 4 + 2) // 3 * 4
    assert state["samples"] == ""
    (tmp_path / "run" / "samples").rename(tmp_path / "away")
    with pytest.raises(SpecError, match=r"within the batch of step 0, whose samples are not in this run's folder"):
        trainer_of(grpo(tmp_path, base, *settings)).fit()


def test_a_checkpoint_within_a_batch_has_its_samples_if_nothing_else_stores_them(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with checkpoints at a URL."""
    monkeypatch.setattr("windlass.post.control.build.log_of", lambda *_: None)
    settings = (*MINIBATCHES, "duration=8steps")
    whole = trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, *settings, "stop=3steps")).fit()
    second = trainer_of(grpo(tmp_path, base, *settings))
    second.fit()
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert not (tmp_path / "run" / "samples").exists()


def test_samples_of_a_batch_are_kept_for_a_checkpoint_within_it(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.post.samples.log._SEGMENT_BYTES", 1)
    settings = (
        *("rollout.epochs=3", "rollout.keep_samples=1", "checkpoint.every=1steps", "checkpoint.keep=1"),
        *("checkpoint.is_async=false", "duration=9steps"),
    )
    trainer_of(grpo(tmp_path, base, *settings, "stop=5steps")).fit()
    assert {each.step for each in read_samples(tmp_path / "run")} == {3}
    second = trainer_of(grpo(tmp_path, base, *settings))
    second.fit()
    whole = trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())


def test_a_resumed_run_samples_with_the_seed_of_its_checkpoint(tmp_path: Path, base: Path) -> None:
    whole = trainer_of(grpo(tmp_path, base, "duration=4steps", "seed=3", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(grpo(tmp_path, base, "duration=4steps", "seed=3", "stop=2steps")).fit()
    second = trainer_of(grpo(tmp_path, base, "duration=4steps", "seed=4"))
    second.fit()
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())


def test_further_prompts_take_the_place_of_groups_that_are_dropped(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, base, "rollout.temperature=0.3"))
    first_batch(trainer)
    found = rollouts_of(trainer).metrics
    rollouts_of(trainer).close()
    assert found["rollout/constant_groups"] > 1
    trainer = trainer_of(grpo(tmp_path, base, "rollout.temperature=0.3", "rollout.refills=9"))
    batch = first_batch(trainer)
    filled = rollouts_of(trainer).metrics
    num_groups = filled["rollout/groups"]
    assert num_groups - filled["rollout/constant_groups"] == 10
    assert (
        rollouts_of(trainer).position == num_groups > 10
    )  # each prompt is used once, and the next batch goes on behind
    assert sum(part.num_sequences for part in batch.parts) == filled["rollout/trained_answers"] == 80


def test_the_limit_of_rounds_ends_a_batch_that_cannot_be_filled(tmp_path: Path, base: Path) -> None:
    (tmp_path / "mine.py").write_text("def always(answer, truth):\n    return 1.0\n")
    trainer = trainer_of(grpo(tmp_path, base, f"reward.verifiers=[{tmp_path / 'mine.py'}:always]", "rollout.refills=2"))
    first_batch(trainer)
    assert rollouts_of(trainer).metrics["rollout/groups"] == 30
    assert rollouts_of(trainer).metrics["rollout/constant_groups"] == 30


@pytest.mark.parametrize("visits", [1, 2])
def test_solved_prompts_are_retired_and_the_run_ends_with_the_last(tmp_path: Path, base: Path, visits: int) -> None:
    (tmp_path / "mine.py").write_text("def always(answer, truth):\n    return 1.0\n")
    settings = (f"reward.verifiers=[{tmp_path / 'mine.py'}:always]", f"rollout.retire={{visits: {visits}}}")
    trainer = trainer_of(grpo(tmp_path, base, *settings))
    assert trainer.fit().is_finished
    assert trainer.step == 2 * visits  # 20 prompts, 10 a batch
    assert rollouts_of(trainer).metrics["rollout/retired_prompts"] == 20


def test_a_run_that_chooses_its_prompts_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    settings = (
        *("rollout.refills=2", "rollout.retire={rate: 0.75}", "rollout.minibatches=2", "rollout.temperature=0.6"),
        "duration=9steps",
    )
    whole = trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    assert rollouts_of(whole).metrics["rollout/retired_prompts"] > 0
    trainer_of(grpo(tmp_path, base, *settings, "stop=3steps")).fit()
    trainer_of(grpo(tmp_path, base, *settings, "stop=6steps")).fit()
    second = trainer_of(grpo(tmp_path, base, *settings))
    second.fit()
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert rollouts_of(second).metrics == rollouts_of(whole).metrics
    assert rollouts_of(second).state_dict() == rollouts_of(whole).state_dict()


def test_visits_in_a_row_retire_a_prompt() -> None:
    config = RetireConfig(rate=0.5, visits=2, reward=0.9)
    prompts = PromptPools(config, None, num_rows=5)
    for rewards in ([1.0, 0.0], [0.5, float("nan")], [1.0, 0.9]):
        prompts.visit(3, rewards)
        assert prompts.next_group(3) == 3
    prompts.visit(4, [1.0])
    again = PromptPools(config, None, num_rows=5)
    again.load_state_dict(prompts.state_dict())
    again.visit(3, [0.9, None])
    assert again.next_group(3) == 4
    assert prompts.next_group(3) == 3  # it has its own state
    assert again.metrics() == {"rollout/retired_prompts": 1.0, "rollout/passed_over_retired": 1.0}


def drawn(pools: PromptPools, count: int) -> list[int]:
    found = [-1]
    while len(found) <= count:
        group = pools.next_group(found[-1] + 1)
        assert group is not None
        assert pools.next_group(found[-1] + 1) == group  # asked twice: the same, and counted once
        found.append(group)
    return found[1:]


def test_prompts_are_drawn_by_the_weights_of_their_pools() -> None:
    config = PoolsConfig(easy=0.75, hard=0.25, weights=PoolWeights(easy=1.0, normal=4.0, hard=2.0))
    pools = PromptPools(None, config, num_rows=30, seed=5, rows=lambda group: group % 30)
    for row in range(10):
        pools.visit(row, [1.0, 1.0, 1.0, 0.0])
        pools.visit(row + 10, [1.0, 0.0, 1.0, 0.0])
        pools.visit(row + 20, [1.0, 0.0, 0.0, None])
    copy = pools.copy()
    groups = drawn(pools, 7000)
    counts = Counter(group % 30 // 10 for group in groups)
    assert [counts[pool] / counts[1] for pool in range(3)] == pytest.approx([0.25, 1.0, 0.5], rel=0.1)
    assert drawn(copy, 7000) == groups  # a function of seed, number and visits
    found = pools.metrics()
    assert (found["rollout/pool_easy"], found["rollout/pool_hard"]) == (10, 10)
    passed = found["rollout/passed_over_easy"] + found["rollout/passed_over_hard"]
    assert passed == groups[-1] + 1 - len(groups)
    other = PromptPools(None, config, num_rows=30, seed=6, rows=lambda group: group % 30)
    other.load_state_dict(pools.state_dict())
    assert drawn(other, 100) != groups[:100]


def test_a_pass_without_a_turn_uses_the_first_prompt_that_may_be_used() -> None:
    config = PoolsConfig(weights=PoolWeights(easy=1e-9, hard=0.0))
    pools = PromptPools(None, config, num_rows=2, rows=lambda group: group % 2)
    pools.visit(0, [0.0])
    pools.visit(1, [1.0])
    assert drawn(pools, 3) == [1, 3, 5]
    pools.visit(1, [0.0])
    assert pools.next_group(6) is None


POOLS = "rollout.pools={easy: 0.75, hard: 0.25, weights: {easy: 0, hard: 0.5}}"


def test_a_run_with_pools_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    settings = (POOLS, "rollout.temperature=0.6", "duration=6steps")
    whole = trainer_of(grpo(tmp_path, base, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    found = rollouts_of(whole).metrics
    assert found["rollout/pool_easy"] > 0
    assert found["rollout/passed_over_easy"] > 0
    trainer_of(grpo(tmp_path, base, *settings, "stop=3steps")).fit()
    second = trainer_of(grpo(tmp_path, base, *settings))
    second.fit()
    state = whole.module.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in second.module.model.state_dict().items())
    assert rollouts_of(second).state_dict() == rollouts_of(whole).state_dict()
