"""Plans of post-training: memory beside measured bytes, work of a batch, what does not fit."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.post.addition import write_pairs, write_sums
from tests.post.memory import LiveTensors
from windlass.post.plan import PostPlan, plan_post, room_in_cluster, total_bytes
from windlass.post.plan_page import plan_lines
from windlass.post.recipe import PostRecipe
from windlass.post.rewards import sandbox
from windlass.train.build import build_trainer
from windlass.train.parallel.world import World
from windlass.train.plan.machine import GPUS, MachineSpec
from windlass.train.resolve import ResolvedRecipe, resolve

TOLERANCE = 0.15
"""Share by which the most bytes that tensors had at one time may differ from the plan; tiny models are the worst case."""

MODEL = (
    "model={d_model: 64, num_layers: 3, vocab_size: 258, hidden: 128, attention: {num_heads: 4}, max_length: 64, "
    "family: llama, is_tied: true}"
)
ROLLOUTS = (
    "rollout.max_new_tokens=11",
    "rollout.num_slots=16",
    "data.max_length=5",
    "rollout.share_prompts=false",
)
GRPO = (*ROLLOUTS, "reward.verifiers=[exact]", "rollout.group_size=4", "rollout.drop_constant_groups=false")


def recipe_of(name: str, folder: Path, *overrides: str) -> ResolvedRecipe:
    source = folder / "rows.jsonl"
    if name in ("grpo", "distill"):
        rows = ({"prompt": f"{n % 10}+{n % 7}=", "answer": str(n)} for n in range(40))
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "sft":
        write_sums(source, 40)
    else:
        write_pairs(source, 40)
    common = (
        *(() if any(word.startswith("model.from=") for word in overrides) else (MODEL, "data.tokenizer.path=bytes")),
        "data.template=plain",
        "schedule.warmup=0steps",
        "~callbacks",
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / name}",
        "data.microbatch_tokens=512",
        "data.batch_rows=16",
        "duration=2steps",
    )
    own = {
        "grpo": GRPO,
        "distill": (*ROLLOUTS, "rollout.group_size=4"),
        "reward": ("data.max_length=8", "model.head=scalar"),
    }.get(name, ("data.max_length=8",))
    return resolve(name, (*common, *own, *overrides))


def planned(resolved: ResolvedRecipe, **machine: Any) -> PostPlan:
    assert isinstance(resolved.recipe, PostRecipe)
    return plan_post(resolved.recipe, MachineSpec(**machine), apply=False)


def most_bytes(resolved: ResolvedRecipe) -> int:
    """The most bytes of tensors at one time, in two steps; what is in cycles is not collected at any moment of them."""
    gc.collect()
    gc.disable()
    try:
        with LiveTensors() as live:
            trainer = build_trainer(resolved, World(device=torch.device("cpu")))
            live.most = 0
            trainer.fit()
    finally:
        gc.enable()
    most: int = live.most
    return most


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from, to compare with and to learn from."""
    folder = tmp_path_factory.mktemp("base")
    build_trainer(recipe_of("sft", folder, "duration=1steps"), World(device=torch.device("cpu"))).fit()
    return folder / "sft"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("grpo", ()),
        ("grpo", ("rollout.colocate=weights",)),
        ("grpo", ("model.from={base}", "objective.kl.coefficient=0.1")),
        ("distill", ("model.from={base}", "teacher.from={base}", "rollout.colocate=cache")),
    ],
)
def test_planned_memory_is_the_most_that_tensors_take(
    tmp_path: Path, base: Path, name: str, overrides: tuple[str, ...]
) -> None:
    resolved = recipe_of(name, tmp_path, *(word.format(base=base) for word in overrides))
    parts = planned(resolved).devices["a learner"]
    assert most_bytes(resolved) == pytest.approx(total_bytes(parts), rel=TOLERANCE)


def test_what_is_freed_while_learning_is_what_the_plan_says(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    kept, lent = recipe_of("grpo", tmp_path / "kept"), recipe_of("grpo", tmp_path, "rollout.colocate=weights")
    freed = most_bytes(kept) - most_bytes(lent)
    engine = planned(kept).engine
    assert engine is not None
    assert freed == engine.num_slots * engine.slot_bytes + engine.weights_bytes
    wanted = total_bytes(planned(kept).devices["a learner"]) - total_bytes(planned(lent).devices["a learner"])
    assert freed == wanted


def test_work_of_a_batch(tmp_path: Path, base: Path) -> None:
    several = (
        f"model.from={base}",
        "objective.kl.coefficient=0.1",
        "rollout.epochs=2",
        "rollout.drop_constant_groups=true",
    )
    plan = planned(recipe_of("grpo", tmp_path, *several, "rollout.refills=1"))
    found = {work.name: work.tokens for work in plan.work}
    answers, length = 64, 16
    assert found == {
        "generation": 2 * (16 * 5 + answers * 11),
        "reference": answers * length,
        "proximal": answers * length,
        "learning": 2 * answers * length,
    }
    flops = {work.name: work.flops for work in plan.work}
    assert flops["learning"] == pytest.approx(6 * flops["reference"])
    assert plan.learner.length.steps == 2


def test_an_adapter_needs_no_second_reference(tmp_path: Path, base: Path) -> None:
    words = (f"model.from={base}", "objective.kl.coefficient=0.1")
    names = [part.name for part in planned(recipe_of("grpo", tmp_path, *words)).devices["a learner"]]
    adapted = planned(recipe_of("grpo", tmp_path, *words, "adapter.rank=2")).devices["a learner"]
    assert "reference" in names
    assert "reference" not in [part.name for part in adapted]
    assert [part.phase for part in adapted if part.name == "gathered"] == ["generating"]  # the merged weights


def test_workers_share_gpus_with_learners(tmp_path: Path) -> None:
    words = ("async.bound=1", "async.workers=3", "objective.correction={clamp_max: 2}")
    plan = planned(recipe_of("grpo", tmp_path, *words), world=2, per_node=2, gpu="a100-40gb")
    assert list(plan.devices) == ["a GPU of a learner and 2 workers", "a GPU of a learner and a worker"]
    slots = [sum(part.name == "engine slots" for part in parts) for parts in plan.devices.values()]
    assert slots == [2, 1]
    assert plan.host_bytes == 8 * plan.learner.parameters.total
    assert plan.processes == {"learners": 2, "engine workers": 3, "reward workers a learner": 2}
    assert any("cores of this machine" in warning for warning in planned_with_many_threads(tmp_path))
    apart = planned(recipe_of("grpo", tmp_path, *words), world=1, per_node=4)
    assert list(apart.devices) == ["a learner", "a worker"]


def planned_with_many_threads(folder: Path) -> tuple[str, ...]:
    words = ("async.bound=1", "async.threads=10000", "objective.correction={clamp_max: 2}")
    return planned(recipe_of("grpo", folder, *words)).warnings


def test_slots_that_fit_fill_the_gpu_and_one_more_does_not(tmp_path: Path) -> None:
    words = (
        "model=llama-271m",
        "data.tokenizer.path=bytes",
        "rollout.max_new_tokens=1024",
        "data.microbatch_tokens=2048",
    )
    plan = planned(recipe_of("grpo", tmp_path, *words), gpu="rtx-4090-24gb")
    fit = plan.speeds[0].slots
    assert fit is not None
    room = 0.9 * GPUS["rtx-4090-24gb"].memory_bytes

    def used(slots: int) -> int:
        return total_bytes(
            planned(recipe_of("grpo", tmp_path, *words, f"rollout.num_slots={slots}"), gpu="rtx-4090-24gb").devices[
                "a learner"
            ]
        )

    sampling = 24 * plan.learner.parameters.embedding  # grows with slots while generating, when less is in use
    assert used(fit) <= room + sampling < used(fit + 1) + 2 * sampling
    too_many = planned(recipe_of("grpo", tmp_path, *words, f"rollout.num_slots={4 * fit}"), gpu="rtx-4090-24gb")
    [warning] = [each for each in too_many.warnings if "of the memory of" in each]
    assert f"rollout.num_slots={fit}" in warning
    assert "rollout.colocate=weights" in warning


def test_slots_that_no_answer_can_use_are_named(tmp_path: Path) -> None:
    plan = planned(recipe_of("grpo", tmp_path, "rollout.num_slots=100"))
    assert any(
        warning.startswith("rollout.num_slots=100, but an engine has at most 64 ans") for warning in plan.warnings
    )


def test_what_the_sandbox_lacks_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: ("no namespaces",))
    plan = planned(recipe_of("grpo", tmp_path, "reward.verifiers=[code]"))
    assert plan.warnings[-1] == "`code` is refused on this machine unless `reward.sandbox: weak`: no namespaces"
    assert list(plan_lines(plan))[-1] == "sandbox of programs on this machine: no namespaces"
    weak = planned(recipe_of("grpo", tmp_path, "reward.verifiers=[code]", "reward.sandbox=weak"))
    assert weak.sandbox == ("no namespaces",)
    assert not any("refused" in warning for warning in weak.warnings)
    assert planned(recipe_of("grpo", tmp_path)).sandbox is None


@pytest.mark.parametrize("name", ["sft", "dpo", "reward"])
def test_recipes_without_rollouts_have_no_engine(tmp_path: Path, name: str) -> None:
    plan = planned(recipe_of(name, tmp_path), gpu="h100-80gb")
    assert plan.engine is None
    assert [work.name for work in plan.work] == ["learning"]
    assert plan.learner.batch_tokens == 16 * 8 * (1 if name == "sft" else 2)
    [logits] = [part.num_bytes for part in plan.devices["a learner"] if part.name == "logits"]
    assert (logits > 100_000) == (name != "reward")  # a scalar for each token
    assert json.loads(json.dumps(plan.to_data()))["post"]["engine"] is None


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "room"),
    [
        ([{"CPU": 8.0}, {"CPU": 3.0}], 2, 0, 5),
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}], 1, 0.5, 2),
        ([{"CPU": 8.0, "GPU": 2.0}], 1, 0.4, 4),
        ([{"CPU": 8.0, "GPU": 3.0}], 1, 2, 1),
        ([{"CPU": 1.0, "GPU": 8.0}], 2, 1, 0),
        ([], 1, 0, 0),
    ],
)
def test_room_in_a_cluster(nodes: list[dict[str, float]], cpus: float, gpus: float, room: int) -> None:
    assert room_in_cluster(nodes, num_cpus=cpus, num_gpus=gpus) == room


def test_a_cluster_that_is_not_there_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = ("async.bound=1", "async.place=ray", "objective.correction={clamp_max: 2}")
    warnings = planned(recipe_of("grpo", tmp_path, *words)).warnings
    assert any(warning.startswith("the room for 1 workers is not checked: async.place") for warning in warnings)


def test_servers_take_no_memory_here(tmp_path: Path) -> None:
    words = ("rollout.engine={name: http, settings: {url: 'http://127.0.0.1:1', weights: reload, folder: w}}",)
    plan = planned(recipe_of("grpo", tmp_path, *words), gpu="h100-80gb")
    assert plan.engine is None
    assert not any(part.name.startswith("engine") for part in plan.devices["a learner"])
    served = planned(recipe_of("distill", tmp_path, "teacher={kind: served, url: 'http://127.0.0.1:1'}"))
    assert "teacher" not in [part.name for part in served.devices["a learner"]]
