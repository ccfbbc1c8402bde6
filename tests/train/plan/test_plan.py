from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from windlass.core.errors import SpecError, UsageError
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.tokenization.ingestion import ingest
from windlass.train.plan.machine import GPUS, MachineSpec
from windlass.train.plan.page import plan_page
from windlass.train.plan.plan import plan_recipe
from windlass.train.resolve import resolve


def refused(world: int, *overrides: str, name: str = "olmo2-7b") -> list[tuple[str, str]]:
    with pytest.raises(SpecError) as caught:
        plan_recipe(resolve(name, overrides).recipe, MachineSpec(world=world), apply=False)
    assert {problem.code for problem in caught.value.problems} <= {"shape-conflict", "setting-unused"}
    return [(problem.message, problem.hint) for problem in caught.value.problems]


def test_the_figures_of_a_known_run() -> None:
    """OLMo 2 7B: 7.3 billion weights, 4T tokens in batches of 4,194,304, 64 processes."""
    plan = plan_recipe(resolve("olmo2-7b").recipe, MachineSpec(world=64, gpu="h100-80gb", mfu=0.4), apply=False)
    assert plan.parameters.total == 7_298_617_344  # as transformers counts allenai/OLMo-2-1124-7B
    assert (plan.length.steps, plan.length.tokens) == (953_675, 953_675 * 4_194_304)
    assert (plan.shape.dp_shard, plan.rows_at_once, plan.microbatches) == (64, 2, 8)
    (speed,) = plan.speeds
    assert speed.tokens_per_s == pytest.approx(64 * 989.5e12 * 0.4 / plan.flops_per_token)
    assert speed.hours == pytest.approx(953_675 * 4_194_304 / speed.tokens_per_s / 3600)
    assert plan.checkpoints.bytes_each == 12 * plan.parameters.total
    assert plan.checkpoints.num_permanent == 96
    assert json.loads(json.dumps(plan.to_data()))["memory_total_bytes"] == plan.memory.total


def test_shapes_that_do_not_divide_are_named_all_together() -> None:
    found = refused(48, "parallel.tensor=3")
    assert (
        "parallel.tensor: 32 query heads are not divisible by 3",
        "choose parallel.tensor so that 3 divides 32",
    ) in found
    assert len(found) > 1


@pytest.mark.parametrize(
    ("world", "overrides", "field"),
    [
        (7, (), "data.batch_tokens: 1024 rows of 4096 tokens are not divisible by 7 data-parallel processes"),
        (6, ("parallel.tensor=4",), "parallel.tensor: 6 processes do not divide into groups of 4"),
        (64, ("data.microbatch_tokens=131072",), "data.microbatch_tokens: 16 rows of a process are not divisible into"),
        (64, ("parallel.pipeline.stages=64", "parallel.data=ddp"), "parallel.pipeline.stages: 64 "),
        (8, ("parallel.replicas=2",), "parallel.replicas: 2 replicas need `data: hsdp`"),
        (
            4,
            ("parallel.strict.shards=2", "parallel.precision=float32"),
            "parallel.strict.shards: 2 is not a multiple of the 4 data-parallel",
        ),
        (
            8,
            ("parallel.data=ddp", "parallel.pipeline.stages=2", "parallel.pipeline.num_microbatches=3"),
            "parallel.pipeline.num_microbatches: 256 rows of a process are not divisible by 3",
        ),
        (
            8,
            ("parallel.data=ddp", "parallel.pipeline.stages=4", "parallel.pipeline.num_microbatches=2"),
            "parallel.pipeline.num_microbatches: 2 are fewer than the 4 stages of the schedule 1f1b",
        ),
        (
            8,
            (
                "parallel.data=ddp",
                "parallel.pipeline.stages=4",
                "data.batch_tokens=90112",
                "data.microbatch_tokens=null",
            ),
            "parallel.pipeline.num_microbatches: 11 rows of a process are not divisible by 8",
        ),
        (
            2,
            (
                "parallel.data=ddp",
                "parallel.pipeline={stages: 2, schedule: interleaved, num_microbatches: 5}",
                "data.batch_tokens=40960",
            ),
            "parallel.pipeline.num_microbatches: the schedule interleaved cannot cut 5 into 2 rounds of 2 stages",
        ),
        (
            8,
            ("parallel.data=ddp", "parallel.pipeline={stages: 2, num_microbatches: 4}"),
            "parallel.pipeline.num_microbatches: 4 microbatches have 64 rows each, but data.microbatch_tokens allows 2",
        ),
        (
            8,
            ("parallel.tensor=2", "loss.kind=chunked"),
            "loss.kind: with parallel.tensor 2 the loss gets all logits at once",
        ),
        (
            8,
            (
                "parallel={data: ddp, pipeline: {stages: 2, schedule: zero-bubble}}",
                "loss.kind=chunked",
                "data.microbatch_tokens=null",
            ),
            "loss.kind: with parallel.pipeline.schedule zero-bubble the loss gets all logits at once",
        ),
        (
            8,
            ("callbacks.grow={kind: batch-size, at: [5steps], tokens: [4202496]}",),
            "callbacks.grow.tokens.0: data.batch_tokens: 1026 rows of 4096 tokens are not divisible by 8 data-parallel",
        ),
        (
            8,
            ("parallel.context=8", "callbacks.short={kind: sequence-length, at: [0steps], lengths: [4]}"),
            "callbacks.short.lengths.0: parallel.context: 4 tokens of a row are not divisible by 8",
        ),
    ],
)
def test_each_shape_that_does_not_divide_is_named(world: int, overrides: tuple[str, ...], field: str) -> None:
    ((message, hint), *_) = refused(world, *overrides)
    assert message.startswith(field)
    assert hint


def test_microbatches_of_a_pipeline_are_no_larger_than_data_says() -> None:
    staged = ("parallel.data=ddp", "parallel.pipeline.stages=2")
    plan = plan_recipe(resolve("olmo2-7b", staged).recipe, MachineSpec(world=8), apply=False)
    assert (plan.rows_at_once, plan.microbatches) == (2, 128)
    plan = plan_recipe(
        resolve("olmo2-7b", (*staged, "data.microbatch_tokens=null")).recipe, MachineSpec(world=8), apply=False
    )
    assert (plan.rows_at_once, plan.microbatches) == (64, 4)
    ((_, hint),) = refused(8, *staged, "parallel.pipeline.num_microbatches=100")
    assert hint == "try parallel.pipeline.num_microbatches=128"


def test_the_hint_for_a_batch_is_one_that_fits() -> None:
    (((_, hint)),) = refused(7)
    found = re.search(r"data.batch_tokens=(\d+)", hint)
    assert found is not None
    plan_recipe(
        resolve("olmo2-7b", [f"data.batch_tokens={found[1]}", "data.microbatch_tokens=null"]).recipe,
        MachineSpec(world=7),
        apply=False,
    )


@pytest.mark.parametrize(
    "name", ["tiny", "llama-271m", "olmo2-1b", "olmo2-7b", "olmo2-32b", "olmo3-7b", "olmo3-32b", "qwen3-0.6b"]
)
@pytest.mark.parametrize("world", [1, 2, 4, 8, 16])
def test_shipped_recipes_divide(name: str, world: int) -> None:
    plan_recipe(resolve(name).recipe, MachineSpec(world=world), apply=False)


@pytest.mark.parametrize(
    ("name", "published_gpus", "last_step", "sizes"),
    [
        # Last steps: the lists of checkpoints beside the sources; OLMo 2 7B: ten steps less, which are at a rate of zero.
        ("olmo2-7b-midtraining", 64, 11_921, {"dp_shard": 64, "cp": 1}),  # its number of GPUs is not in its source
        ("olmo3-7b-midtraining", 128, 47_684, {"dp_shard": 128, "cp": 1}),
        ("olmo3-7b-long-context", 256, 11_921, {"dp_shard": 32, "cp": 8}),
        ("olmo3-32b-midtraining", 512, 23_842, {"dp_shard": 512, "cp": 1}),
        ("olmo3-32b-long-context", 1024, 11_921, {"dp_shard": 128, "cp": 8}),
    ],
)
def test_later_stages_have_their_published_steps_on_the_published_gpus(
    name: str, published_gpus: int, last_step: int, sizes: dict[str, int]
) -> None:
    recipe = resolve(name).recipe
    plan = plan_recipe(recipe, MachineSpec(world=published_gpus, gpu="h100-80gb"), apply=False)
    assert plan.length.steps == last_step
    assert {axis: getattr(plan.shape, axis) for axis in sizes} == sizes
    assert plan.memory.total < 80 * 10**9
    plan_recipe(recipe, MachineSpec(world=8), apply=False)


def warnings(*overrides: str, name: str = "olmo2-7b", world: int = 64, gpu: str = "h100-80gb") -> str:
    plan = plan_recipe(resolve(name, overrides).recipe, MachineSpec(world=world, gpu=gpu), apply=False)
    return "\n".join(plan.warnings)


def test_what_does_not_fit_is_said_with_what_to_try() -> None:
    assert "of the memory of a100-40gb; try" in warnings("parallel.data=ddp", gpu="a100-40gb")
    assert "parallel.data=fsdp" in warnings("parallel.data=ddp")
    assert "parallel.checkpointing.kind=full" in warnings("parallel.compile=false", "data.microbatch_tokens=65536")
    assert "of the memory" not in warnings()


def test_what_is_probably_not_meant_is_said() -> None:
    assert warnings() == ""
    assert "does not use tensor cores" in warnings("parallel.precision=float32", "parallel.checkpointing.kind=full")
    assert "spans nodes" in warnings("parallel.tensor=16")
    assert "only the last one is kept" in warnings("stop=100steps")
    assert "depends on the data" in warnings("duration=1epoch")
    assert "not on GPUs" in warnings("parallel.context=2")
    assert "parallel.data=hsdp parallel.replicas=4" in warnings(world=256)


def test_checkpoints_that_stay() -> None:
    def kept(*overrides: str) -> int | None:
        return plan_recipe(resolve("tiny", overrides).recipe, MachineSpec(), apply=False).checkpoints.num_permanent

    assert kept() == 2
    assert kept("checkpoint.keep=null", "checkpoint.every=100steps") == 5
    assert kept("checkpoint.every=null") == 1
    assert kept("no_checkpoints=true") == 0
    assert kept("duration=1epoch", "checkpoint.keep=null") is None


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [
        ({"world": "0"}, "invalid world `0`: it must be a positive integer", "invalid-value"),
        ({"world": "many"}, "invalid world `many`: it must be a positive integer", "invalid-value"),
        ({"mfu": "40%"}, "invalid mfu `40%`: it must be a number", "invalid-value"),
        ({"mfu": "40"}, "invalid mfu `40`: it must be above 0 and at most 1", "invalid-value"),
        ({"gpu": "h200"}, "unknown GPU `h200`", "unknown-name"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(words: dict[str, str], message: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        MachineSpec.from_words(words)
    assert (caught.value.message, caught.value.code) == (message, code)
    assert caught.value.hint


def test_the_page_names_every_gpu_without_one() -> None:
    page = "\n".join(plan_page(plan_recipe(resolve("tiny").recipe, MachineSpec(), apply=False)))
    assert all(name in page for name in GPUS)
    assert "500 steps, 2.05M tokens" in page


def test_data_that_is_here_is_counted_and_data_that_is_not_is_said(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"x" * 410_000)
    here = plan_recipe(resolve("tiny", [f"data.sources.0.path={text}"]).recipe, MachineSpec(), apply=False)
    assert here.data.facts is not None
    assert here.data.facts.tokens == 410_000
    assert "about 410k tokens, 400.4 KiB of text to tokenize; about 100 steps an epoch" in "\n".join(plan_page(here))
    gone = plan_recipe(resolve("tiny", [f"data.sources.0.path={tmp_path}/gone"]).recipe, MachineSpec(), apply=False)
    assert gone.data.note == f"no data at {tmp_path}/gone"


def test_tokens_past_the_vocabulary_are_warned_of(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc" * 2000)
    ingest(SourceConfig(path=(str(text),)), TokenizerConfig(path="bytes"), cache=tmp_path / "cache")
    overrides = [f"data.sources.0.path={text}", f"data.cache={tmp_path}/cache", "model.vocab_size=90"]
    plan = plan_recipe(resolve("tiny", overrides).recipe, MachineSpec(), apply=False)
    assert any("model.vocab_size is 90" in warning for warning in plan.warnings)
