"""Adapters in each recipe: what is trained, saved, resumed, exported and refused; what the engine gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoTokenizer

from tests.post import test_grpo, test_pairs
from tests.post.addition import write_sums
from tests.post.test_grpo import _logp, first_batch, grpo, rollouts_of
from tests.post.test_grpo_async import BOUND
from tests.post.test_pairs import metric, pairs
from tests.post.test_sft import COMMON, sft, trainer_of
from windlass.core.errors import SpecError
from windlass.post.control.synchronous import SyncRollouts
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.store import WeightRef
from windlass.testing.distributed import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.checkpoint.files import open_files
from windlass.train.checkpoint.reading import CheckpointReader
from windlass.train.data.protocol import NotReady
from windlass.train.errors import CheckpointError
from windlass.train.generation.continuation import continue_texts
from windlass.train.hf.convert_weights import export_model
from windlass.train.hf.import_export import export_hf
from windlass.train.hf.mapped import ModuleWeights
from windlass.train.hf.sources import load_model, open_model
from windlass.train.model.adapters import is_of_adapter, merged_weights
from windlass.train.parallel.world import World
from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.page import plan_page
from windlass.train.plan.plan import plan_recipe
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

LORA = "adapter={rank: 4, alpha: 8, dropout: 0.1}"

base, answering = test_pairs.base, test_grpo.base
"""Fixtures: a model that was fine-tuned on sums, and one that knows the form of an answer."""


def adapted(folder: Path, start: Path, *overrides: str) -> ResolvedRecipe:
    return sft(folder, LORA, "optim.lr=3e-2", 'data.tokenizer.path=""', *overrides, model=f"model.from={start}")


def parts(trainer: Trainer[TokenBatch]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The adapter's weights and the base's."""
    state = {name: value.clone() for name, value in trainer.module.model.state_dict().items()}
    own = {name: value for name, value in state.items() if is_of_adapter(name)}
    return own, {name: value for name, value in state.items() if name not in own}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_adapter_learns_and_the_base_stays(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(adapted(tmp_path, base, "duration=60steps"))
    before = parts(trainer)
    assert equal(before[1], load_model(str(base)).state_dict())
    outcome = trainer.fit()
    own, frozen = parts(trainer)
    assert equal(frozen, before[1])
    assert not any(torch.equal(value, before[0][name]) for name, value in own.items())
    assert continue_texts(outcome.checkpoint, ["7+3=", "0+0=", "4+6="], max_new_tokens=4) == ["10", "0", "10"]


def test_a_checkpoint_holds_the_adapter_alone(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(adapted(tmp_path, base, "duration=1step"))
    outcome = trainer.fit()
    tensors = CheckpointReader.open(open_files(outcome.checkpoint)).layout.tensors
    assert tensors["model"].keys() == parts(trainer)[0].keys()
    assert max(entry.shape[0] for entry in tensors["base"].values()) <= 16


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, base: Path) -> None:
    whole = trainer_of(adapted(tmp_path, base, "duration=6steps", f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(adapted(tmp_path, base, "duration=6steps", "stop=2steps")).fit()
    second = trainer_of(adapted(tmp_path, base, "duration=6steps"))
    second.fit()
    assert second.step == 6
    assert equal(parts(second)[0], parts(whole)[0])


def test_a_changed_base_is_refused(tmp_path: Path, base: Path) -> None:
    other = trainer_of(sft(tmp_path, "duration=1step", f"checkpoint.folder={tmp_path / 'other'}"))
    other.fit()
    outcome = trainer_of(adapted(tmp_path, base, "duration=2steps", "stop=1step")).fit()
    with pytest.raises(CheckpointError, match="another base model than the one of this run"):
        trainer_of(adapted(tmp_path, tmp_path / "other", "duration=2steps")).fit()
    continued = (
        f"adapter={{from: {tmp_path / 'run'}}}",
        f"checkpoint.folder={tmp_path / 'next'}",
        'data.tokenizer.path=""',
    )
    with pytest.raises(CheckpointError, match="another base model than"):
        trainer_of(sft(tmp_path, *continued, model=f"model.from={tmp_path / 'other'}"))
    config = Path(outcome.checkpoint) / "config.json"
    with open_model(outcome.checkpoint) as source:
        assert source.tensor("norm.weight").shape == (32,)
    stated = json.loads(config.read_text())["adapter"]
    assert stated["base"] == str(base / "step-20")


def test_exports_as_an_adapter_and_merged_compute_the_same(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(adapted(tmp_path, base, "duration=5steps", "adapter.rslora=true"))
    outcome = trainer.fit()
    merged = merged_weights(trainer.module.model)
    peft = export_hf(outcome.checkpoint, tmp_path / "peft", dtype="float32")
    whole = export_hf(outcome.checkpoint, tmp_path / "whole", dtype="float32", merge=True)
    assert sorted(path.name for path in peft.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for path in (outcome.checkpoint, str(peft), str(whole)):
        assert equal(dict(load_model(path).state_dict()), merged), path
    continued = sft(
        tmp_path,
        f"adapter={{from: {peft}}}",
        f"checkpoint.folder={tmp_path / 'continued'}",
        'data.tokenizer.path=""',
        model=f"model.from={base}",
    )
    assert equal(parts(trainer_of(continued))[0], parts(trainer)[0])
    again = trainer_of(
        sft(tmp_path, f"checkpoint.folder={tmp_path / 'next'}", 'data.tokenizer.path=""', model=f"model.from={peft}")
    )
    assert equal(merged_weights(again.module.model), merged)


def test_an_adapter_of_a_run_goes_on(tmp_path: Path, base: Path) -> None:
    first = trainer_of(adapted(tmp_path, base, "duration=2steps"))
    first.fit()
    overrides = (f"adapter={{from: {tmp_path / 'run'}}}", f"checkpoint.folder={tmp_path / 'next'}")
    resolved = sft(tmp_path, *overrides, 'data.tokenizer.path=""', model=f"model.from={base}")
    assert equal(parts(trainer_of(resolved))[0], parts(first)[0])


def test_the_reference_of_dpo_is_the_base_without_a_second_copy(tmp_path: Path, base: Path) -> None:
    trainer_of(pairs("dpo", tmp_path, base))
    columns = set((tmp_path / "cache").glob("*-reference-*.npy"))
    trainer = trainer_of(pairs("dpo", tmp_path, base, LORA, "optim.lr=3e-2", f"checkpoint.folder={tmp_path / 'lora'}"))
    assert metric(trainer, "margin") == pytest.approx(0.0, abs=1e-5)
    trainer.fit()
    assert metric(trainer, "accuracy") > 0.9
    continued = pairs(
        "dpo", tmp_path, base, f"adapter={{from: {tmp_path / 'lora'}}}", f"checkpoint.folder={tmp_path / 'on'}"
    )
    assert abs(metric(trainer_of(continued), "margin")) > 0.1  # against the base, not against the adapter's start
    for path in columns:
        path.unlink()
    trainer_of(continued)
    assert set((tmp_path / "cache").glob("*-reference-*.npy")) == columns  # computed with the adapter off


def test_a_reward_model_is_an_adapter_and_a_head(tmp_path: Path, base: Path) -> None:
    trainer = trainer_of(pairs("reward", tmp_path, base, LORA, "optim.lr=3e-2", "duration=60steps"))
    outcome = trainer.fit()
    assert metric(trainer, "accuracy") > 0.9
    assert "score.weight" in trainer.module.state_dict()["model"]
    assert equal(dict(load_model(outcome.checkpoint).state_dict()), merged_weights(trainer.module.model))
    peft = export_hf(outcome.checkpoint, tmp_path / "peft", dtype="float32")
    stated = json.loads((peft / "adapter_config.json").read_text())
    assert (stated["task_type"], stated["modules_to_save"]) == ("SEQ_CLS", ["score"])


def test_rollouts_come_from_the_merged_model(tmp_path: Path, answering: Path) -> None:
    trainer = trainer_of(grpo(tmp_path, answering, LORA, "duration=4steps", "optim.lr=3e-2", "rollout.temperature=2"))
    start = parts(trainer)
    trainer.fit()
    assert equal(parts(trainer)[1], start[1])
    next(batch for batch in rollouts_of(trainer) if not isinstance(batch, NotReady))  # by the last step's weights
    source = rollouts_of(trainer)._source
    assert isinstance(source, SyncRollouts)
    assert isinstance(source._engine, EmbeddedEngine)
    assert equal(dict(source._engine._model.state_dict()), merged_weights(trainer.module.model))
    assert not equal(parts(trainer)[0], start[0])
    rollouts_of(trainer).close()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def test_workers_get_the_adapter_alone_and_merge_it(
    tmp_path: Path, answering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = (LORA, *BOUND, "duration=4steps", "optim.lr=3e-2", "rollout.temperature=2", "async.workers=1")
    trainer = trainer_of(grpo(tmp_path, answering, *overrides))
    start, publish = parts(trainer), FileWeightStore.publish
    sizes: list[tuple[int, int]] = []

    def publish_and_measure(self: FileWeightStore, *args: Any, **settings: Any) -> WeightRef:
        ref = publish(self, *args, **settings)
        if settings:
            sizes.append((size_of(self.folder / f"v{ref.version:08d}"), size_of(self.folder / "base/v00000000")))
        return ref

    monkeypatch.setattr(FileWeightStore, "publish", publish_and_measure)
    assert trainer.fit().is_finished  # a worker checks every version against the learner's log-probabilities
    assert len(sizes) == 4
    assert all(0 < adapter < 0.3 * base for adapter, base in sizes)  # of a model of 35 thousand parameters
    own, frozen = parts(trainer)
    assert equal(frozen, start[1])
    assert not equal(own, start[0])


def test_the_reference_of_a_kl_penalty_is_the_base_without_a_second_copy(tmp_path: Path, answering: Path) -> None:
    kept = ("rollout.drop_constant_groups=false", "objective.kl.coefficient=0.5", "rollout.share_prompts=false")
    trainer = trainer_of(grpo(tmp_path, answering, LORA, *kept))
    with torch.no_grad():
        for name, parameter in trainer.module.model.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(std=0.1)  # the policy is not the reference any more
    reference = load_model(str(answering))
    part = first_batch(trainer).parts[0]
    counts_BT = part.weights["policy"] > 0
    own, other = (_logp(model, part.tokens_BT, part.labels_BT, 1.0) for model in (trainer.module.model, reference))
    torch.testing.assert_close(part.streams["reference"][counts_BT], other[counts_BT], rtol=1e-5, atol=1e-5)
    assert float((own - other)[counts_BT].abs().max()) > 0.01


def _steps(world: World, overrides: tuple[str, ...]) -> dict[str, list[float]]:
    trainer = build_trainer(resolve("sft", overrides), world)
    trainer.fit()
    return {
        name: value.full_tensor().flatten().tolist() for name, value in trainer.module.state_dict()["model"].items()
    }


def test_two_processes_that_shard_train_the_same_adapter(tmp_path: Path, base: Path) -> None:
    without = ("adapter.dropout=0", "duration=3steps")  # which numbers are dropped depends on the microbatch
    alone = trainer_of(adapted(tmp_path, base, *without))
    alone.fit()
    overrides = adapted(
        tmp_path, base, *without, "parallel.data=fsdp", f"checkpoint.folder={tmp_path / 'two'}"
    ).overrides
    for found in run_distributed_test(_steps, num_processes=2, args=(overrides,), timeout_s=600.0):
        for name, value in parts(alone)[0].items():
            assert torch.allclose(torch.tensor(found[name]), value.flatten(), atol=1e-5), name
    assert equal(parts(alone)[1], dict(load_model(str(base)).state_dict()))
    with open_model(str(tmp_path / "two")) as source:
        assert source.tensor("blocks.0.ffn.up.weight").shape == (64, 32)


def test_a_plan_counts_what_is_trained(tmp_path: Path, base: Path) -> None:
    whole, part = (
        plan_recipe(resolved.recipe, MachineSpec(world=1))
        for resolved in (
            sft(tmp_path, 'data.tokenizer.path=""', model=f"model.from={base}"),
            adapted(tmp_path, base),
        )
    )
    trained = sum(value.numel() for value in parts(trainer_of(adapted(tmp_path, base)))[0].values())
    assert part.parameters.trained == trained
    assert part.parameters.total == whole.parameters.total + trained
    assert part.memory.optimizer == 8 * trained
    assert part.memory.weights == 4 * part.parameters.total
    assert part.checkpoints.bytes_each == 12 * trained
    assert part.applied.facts["parameters"] == part.parameters.total
    assert any("of them trained" in line for line in plan_page(part))
    assert not any("of them trained" in line for line in plan_page(whole))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("adapter={rank: 0}",), "rank"),
        (("adapter={targets: ['*.q_proj']}",), "matches no linear layer"),
        (("adapter={from: /nowhere}",), "adapter.from: no model at /nowhere"),
        (("adapter={from: BASE}",), "adapter.from: .*has no adapter"),
        (("adapter={rank: 2}", "parallel.tensor=2"), "`parallel.tensor` is not supported with an adapter"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, base: Path, overrides: tuple[str, ...], why: str) -> None:
    overrides = tuple(each.replace("BASE", str(base)) for each in overrides)
    with pytest.raises(SpecError, match=why):
        trainer_of(sft(tmp_path, 'data.tokenizer.path=""', *overrides, model=f"model.from={base}"))


def test_an_adapter_needs_a_trained_model(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="an adapter needs a trained model beside it"):
        sft(tmp_path, LORA)


def words(folder: Path, start: Path) -> Path:
    """A Hugging Face model with a tokenizer of words, two end ids and settings of generation."""
    model = load_model(str(start))
    export_model(model.config, ModuleWeights(model), folder)
    names = ["<s>", "<end>", "<pad>", "[UNK]", *map(str, range(20)), "+", "="]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(names)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    inner.add_special_tokens(["<s>", "<end>", "<pad>"])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>", "pad_token": "<pad>"}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2], "temperature": 0.6}')
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "eos_token_id": [1, 2], "pad_token_id": 2}))
    return folder


@pytest.mark.parametrize("more", [(), (LORA,)])
def test_an_export_is_complete_and_has_the_template_in_use(tmp_path: Path, base: Path, more: tuple[str, ...]) -> None:
    start = words(tmp_path / "start", base)
    for name, path in (("first", f"hf:{start}"), ("second", str(tmp_path / "first"))):
        source = write_sums(tmp_path / "sums.jsonl", 20)
        overrides = (
            f"model.from={path}",
            *COMMON[2:],
            f"data.mix.0.source={source}",
            f"data.cache={tmp_path / 'cache'}",
            f"checkpoint.folder={tmp_path / name}",
            "data.batch_rows=10",
            "duration=1step",
            "~callbacks",
            f"data.template={'plain' if name == 'first' else 'auto'}",
            *more,
        )
        trainer_of(resolve("sft", overrides)).fit()
    (start / "tokenizer.json").unlink()  # the checkpoint does not need it any more
    made = export_hf(str(tmp_path / "second"), tmp_path / "made", merge=bool(more))
    assert (made / "generation_config.json").read_bytes() == (start / "generation_config.json").read_bytes()
    stated = json.loads((made / "config.json").read_text())
    assert (stated["eos_token_id"], stated["pad_token_id"]) == ([1, 2], 2)
    tokenizer = AutoTokenizer.from_pretrained(made)
    chat = [{"role": "user", "content": "1 + 2 ="}, {"role": "assistant", "content": "3"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "1 + 2 =3<end>"
    continue_texts(str(tmp_path / "second"), ["1 + 2 ="], max_new_tokens=2)
