"""What is applied to a model without any other process: checkpointing, the compiler, precision, trees of sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.train.parallel.shapes import DEEP, KINDS, TINY
from windlass.config.encode import to_data
from windlass.core.errors import PreconditionError, SpecError
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.model.init import init_weights
from windlass.train.optim.config import LossConfig
from windlass.train.parallel import activation
from windlass.train.parallel.apply import blocks_of, parallelize, pipeline_of, replicas_of
from windlass.train.parallel.compiling import cache_artifacts, compile_blocks, load_artifacts
from windlass.train.parallel.config import (
    BudgetCheckpointing,
    Float8Config,
    FullCheckpointing,
    ParallelConfig,
    PipelineConfig,
    SelectiveCheckpointing,
    StrictConfig,
)
from windlass.train.parallel.float8 import is_converted
from windlass.train.parallel.pipeline import Pipeline, split_blocks
from windlass.train.parallel.strict import MicrobatchTree
from windlass.train.parallel.sync import no_sync, sync_gradients
from windlass.train.parallel.world import World, device_of, place_of

P = ParallelConfig


def world() -> World:
    return World(device=torch.device("cpu"))


def built(config: ParallelConfig, *, kind: str = "pre") -> Decoder:
    with torch.device("meta"):
        model = Decoder(KINDS[kind])
    parallelize(model, config, world())
    init_weights(model, seed=1)
    return model


def gradients(model: Decoder) -> tuple[float, dict[str, Tensor]]:
    tokens_BT = torch.randint(0, TINY.vocab_size, (2, 17), generator=torch.Generator().manual_seed(2))
    with no_sync(model, is_last=True):
        sums = model(tokens_BT[:, :-1], labels_BT=tokens_BT[:, 1:])
        assert isinstance(sums, LossSums)
        sums.loss.backward()
    return float(sums.loss.detach()), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "checkpointing",
    [FullCheckpointing(), FullCheckpointing(every=2), SelectiveCheckpointing(), SelectiveCheckpointing(keep_every=1)],
)
@pytest.mark.parametrize("kind", ["pre", "peri"])
def test_checkpointing_changes_no_bit_and_no_name(checkpointing: Any, kind: str) -> None:
    plain, again = built(P(), kind=kind), built(P(checkpointing=checkpointing), kind=kind)
    assert list(plain.state_dict()) == list(again.state_dict())
    loss, expected = gradients(plain)
    other, found = gradients(again)
    assert loss == other
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_blocks_are_computed_again() -> None:
    calls = {"up": 0}

    def count(*_: object) -> None:
        calls["up"] += 1

    for checkpointing, expected in ((None, 2), (FullCheckpointing(), 4), (FullCheckpointing(every=2), 3)):
        calls["up"] = 0
        model = built(P(checkpointing=checkpointing))
        for block in blocks_of(model):
            block.get_submodule("ffn.up").register_forward_hook(count)
        gradients(model)
        assert calls["up"] == expected


def test_random_numbers_are_drawn_again() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    parallelize(module, P(checkpointing=FullCheckpointing()), world())
    whole = nn.Sequential(*module)
    gradients = []
    for model in (module, whole):
        torch.manual_seed(0)
        model(torch.ones(4, 8)).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        model.zero_grad()
    assert all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))


def test_selective_keeps_each_second_product() -> None:
    policy = activation._Policy(2)

    class Context:
        is_recompute = False

    kept = [policy(Context(), torch.ops.aten.mm.default).name for _ in range(4)]
    assert kept == ["PREFER_RECOMPUTE", "MUST_SAVE"] * 2
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert policy(Context(), flash).name == "MUST_SAVE"
    assert policy(Context(), torch.ops.aten.mul.Tensor).name == "PREFER_RECOMPUTE"


@pytest.mark.parametrize("checkpointing", [None, FullCheckpointing(), SelectiveCheckpointing()])
def test_all_blocks_share_one_compiled_graph(checkpointing: Any) -> None:
    torch._dynamo.reset()
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.device("meta"):
        model = Decoder(DEEP)
    parallelize(model, P(checkpointing=checkpointing), world())
    init_weights(model, seed=1)
    compile_blocks(model, blocks_of(model), backend=backend)
    plain = Decoder(DEEP)
    init_weights(plain, seed=1)
    assert gradients(model)[0] == pytest.approx(gradients(plain)[0], rel=1e-6)
    assert len(graphs) == 1
    assert list(model.state_dict()) == list(plain.state_dict())
    torch._dynamo.reset()


def test_artifacts_of_nothing_and_of_nonsense() -> None:
    found = cache_artifacts()
    assert found is None or isinstance(found, bytes)
    assert load_artifacts(b"no artifacts") is False


def test_low_precision_computes_and_keeps_float32_weights() -> None:
    model = built(P(precision="bfloat16"))
    seen: list[torch.dtype] = []
    blocks_of(model)[0].get_submodule("attention.q").register_forward_hook(lambda *call: seen.append(call[2].dtype))
    loss, found = gradients(model)
    assert seen == [torch.bfloat16]
    assert {grad.dtype for grad in found.values()} == {torch.float32}
    assert loss == pytest.approx(gradients(built(P()))[0], rel=0.01)
    assert not torch.is_autocast_enabled("cpu")
    with pytest.raises(IndexError):
        model(torch.full((1, 4), TINY.vocab_size))
    assert not torch.is_autocast_enabled("cpu")


def test_float8_names_what_is_missing() -> None:
    with pytest.raises(PreconditionError, match=r"needs a GPU of capability \(8, 9\); found cpu"):
        built(P(float8=Float8Config()))


def test_float8_leaves_the_head_and_odd_shapes() -> None:
    wide, odd = nn.Linear(32, 64), nn.Linear(32, 60)
    assert [is_converted(m, n, ("head",)) for m, n in ((wide, "q"), (wide, "head"), (odd, "q"))] == [True, False, False]


def test_any_module_is_taken_and_splitting_it_is_refused() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert parallelize(module, P(data="fsdp", checkpointing=FullCheckpointing()), world()) is module
    assert replicas_of(module) is None
    assert pipeline_of(module) is None
    module(torch.ones(1, 3)).sum().backward()
    sync_gradients(module)
    joined = World(size=2, device=torch.device("cpu"))
    with pytest.raises(SpecError, match="cannot split a Sequential"):
        parallelize(nn.Sequential(nn.Linear(3, 4)), P(tensor=2), joined)


def test_stages_hold_all_blocks_once() -> None:
    for schedule in ("1f1b", "interleaved"):
        config = PipelineConfig(stages=2, schedule=schedule)
        names: list[str] = []
        for rank in range(2):
            with torch.device("meta"):
                model = Decoder(DEEP)
            groups = split_blocks(model, config, rank)
            names += list(model.state_dict())
            assert (model.embed is not None, model.norm is not None) == (rank == 0, rank == 1)
            assert [name for group in groups for name in group] == ["0", "1", "2", "3"]
        with torch.device("meta"):
            assert sorted(names) == sorted(Decoder(DEEP).state_dict())


@pytest.mark.system
def test_a_pipeline_takes_no_more_rows_at_once_than_it_may() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Decoder(TINY)
    init_weights(model, seed=1)
    config = PipelineConfig(stages=1)
    group = cast("dist.ProcessGroup", dist.group.WORLD)
    pipeline = Pipeline(model, split_blocks(model, config, 0), config, group, torch.device("cpu"))
    seen: list[int] = []
    model.blocks["0"].register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    tokens_BT = torch.zeros(8, 16, dtype=torch.int64)
    for rows_at_once, expected in ((None, [4, 4]), (8, [4, 4]), (2, [2, 2, 2, 2])):
        pipeline.train_batch(tokens_BT, None, tokens_BT, loss=LossConfig(), total_weight=1.0, rows_at_once=rows_at_once)
        assert seen[-len(expected) :] == expected
    with pytest.raises(SpecError, match="7 rows of a process are not divisible by 2"):
        pipeline.train_batch(tokens_BT[:7], None, tokens_BT[:7], loss=LossConfig(), total_weight=1.0)
    dist.destroy_process_group()


@pytest.mark.parametrize("num_microbatches", [1, 2, 4, 8])
def test_microbatches_are_merged_as_a_binary_tree(num_microbatches: int) -> None:
    parameter, idle = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    leaves = [torch.randn(3, generator=torch.Generator().manual_seed(seed)) for seed in range(num_microbatches)]
    tree = MicrobatchTree([parameter, idle])
    for leaf in leaves:
        parameter.grad = leaf.clone()
        tree.add()
        assert parameter.grad is None
    tree.finish()
    level = leaves
    while len(level) > 1:
        level = [first + second for first, second in zip(level[::2], level[1::2], strict=True)]
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, level[0])
    assert idle.grad is None


def test_negative_zero_is_made_zero() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    tree = MicrobatchTree([parameter])
    parameter.grad = torch.tensor([-0.0])
    tree.add()
    tree.finish()
    assert parameter.grad is not None
    assert str(parameter.grad.item()) == "0.0"


def test_settings_that_do_not_go_together() -> None:
    budget = P(checkpointing=BudgetCheckpointing())
    assert [finding[0] for finding in budget.check()] == ["checkpointing"]
    assert list(replace(budget, compile=True).check()) == []
    assert [finding[0] for finding in P(strict=StrictConfig(), precision="bfloat16").check()] == ["strict"]
    staged = P(compile=True, pipeline=PipelineConfig(stages=2, schedule="zero-bubble"))
    assert [finding[0] for finding in staged.check()] == ["compile"]
    assert to_data(P()) == {}


def test_a_process_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(PreconditionError, match="process 1 of this machine has no GPU: torch sees 1") as caught:
        World.begin("cuda")
    assert caught.value.code == "no-gpu"


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is `two`"),
        ({"RANK": ""}, "RANK is ``"),
        ({"WORLD_SIZE": "0"}, "RANK is 0 and WORLD_SIZE 0"),
        ({"WORLD_SIZE": "2", "RANK": "5"}, "RANK is 5 and WORLD_SIZE 2"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but MASTER_ADDR is not set"),
    ],
)
def test_an_environment_that_names_no_place(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], problem: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert place_of() == (0, 1, 0)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PreconditionError, match=problem) as caught:
        World.begin("cpu")
    assert caught.value.code == "bad-process-environment"
