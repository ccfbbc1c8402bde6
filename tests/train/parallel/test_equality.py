"""However a model is spread, it trains as on one process: same losses, same weights, within rounding.

Many cases share one spawn of processes, which costs more than most cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from torch import Tensor, nn

from tests.train.parallel.runs import Outcome, Run, run_all, spread, whole
from tests.train.parallel.shapes import DEEP, KINDS, MOE, TINY
from windlass.testing import run_distributed_test
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.config import (
    FullCheckpointing,
    ParallelConfig,
    PipelineConfig,
    SelectiveCheckpointing,
    StrictConfig,
)
from windlass.train.parallel.sync import no_sync
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

P = ParallelConfig
TOLERANCE = 1e-6


def staged(stages: int, schedule: str) -> ParallelConfig:
    return P(pipeline=PipelineConfig(stages=stages, schedule=schedule))  # type: ignore[arg-type]


def drawn(num: int, *plans: ParallelConfig) -> list[Run]:
    """Plans with microbatches, rows and documents that chance has put together, the same each time."""
    random = Random(11)
    return [
        Run(
            parallel=random.choice(plans),
            model=random.choice([*KINDS.values(), MOE]),
            num_rows=random.choice([8, 16]),
            num_microbatches=random.choice([1, 2]),
            length=random.choice([6, 12, 20]),
            has_documents=random.random() < 0.5,
            num_steps=2,
        )
        for _ in range(num)
    ]


STAGED = [
    Run(parallel=staged(2, "gpipe")),
    Run(parallel=staged(2, "1f1b"), model=DEEP, has_documents=True),
    Run(parallel=staged(2, "interleaved"), model=DEEP),
    Run(parallel=staged(2, "zero-bubble"), model=DEEP),
]
TWO = [
    *drawn(6, P(data="ddp"), P(data="fsdp")),
    *(Run(parallel=P(data="fsdp"), model=model) for model in (*KINDS.values(), MOE)),
    *(Run(parallel=P(data="ddp"), model=model) for model in (TINY, MOE)),
    *(Run(parallel=P(tensor=2), model=model) for model in KINDS.values()),
    Run(parallel=P(data="fsdp", checkpointing=FullCheckpointing()), num_microbatches=1),
    Run(parallel=P(data="ddp", checkpointing=SelectiveCheckpointing()), num_microbatches=4),
    Run(parallel=P(expert=2), model=MOE),
    Run(parallel=P(context=2), has_documents=True),
    Run(parallel=P(context=2), model=KINDS["peri"], has_documents=True),
    *(evaluated for run in STAGED for evaluated in (run, replace(run, evaluates=(8, 7, 3, 1)))),
]
FOUR = [
    *drawn(4, P(data="ddp"), P(data="fsdp"), P(data="hsdp", replicas=2)),
    *(Run(parallel=P(data="hsdp", replicas=2), model=model, has_documents=True) for model in (KINDS["peri"], MOE)),
    *(Run(parallel=P(data="fsdp", tensor=2), model=KINDS[kind]) for kind in ("olmo", "qwen", "peri")),
    Run(parallel=P(data="ddp", tensor=2), model=KINDS["olmo"]),
    Run(parallel=P(data="hsdp", replicas=2, expert=2), model=MOE),
    Run(parallel=P(expert=4, context=2), model=MOE),
    Run(parallel=P(context=2, tensor=2), model=KINDS["qwen"], has_documents=True),
    Run(parallel=staged(2, "1f1b"), model=DEEP, evaluates=(8, 5)),
]


# Nothing divides by four, nor by a vector's width.
ODD_HEADS = replace(TINY.attention, num_heads=3, num_kv_heads=1, head_dim=10)
ODD = replace(TINY, d_model=30, hidden=37, vocab_size=91, attention=ODD_HEADS)
STRICT_MODELS = (ODD, KINDS["olmo"], KINDS["qwen"])
STRICT_PLANS = {
    1: (P(),),
    2: (P(data="ddp"), P(data="fsdp")),
    4: (P(data="ddp"), P(data="fsdp"), P(data="hsdp", replicas=2)),
}


def strict(num_processes: int) -> list[Run]:
    """Runs in strict mode, of the same models and batches for each number of processes."""
    plans = [replace(plan, strict=StrictConfig(shards=4)) for plan in STRICT_PLANS[num_processes]]
    return [Run(parallel=plan, model=model, num_steps=4) for plan in plans for model in STRICT_MODELS]


@pytest.fixture
def here() -> Iterator[World]:
    """This process alone, with one thread: others would share sums among them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World(device=torch.device("cpu"))
    torch.set_num_threads(before)


@pytest.mark.parametrize(("num_processes", "runs"), [(2, TWO), (4, FOUR)])
def test_training_is_that_of_one_process(num_processes: int, runs: list[Run], here: World) -> None:
    plain = [replace(run, parallel=P(), num_microbatches=1) for run in runs]
    ranks = run_distributed_test(run_all, num_processes, ([*runs, *strict(num_processes)],), timeout_s=400.0)
    for run, one, outcomes in zip(runs, run_all(here, plain), zip(*ranks, strict=True), strict=False):
        check_equal(run, one, outcomes)
    strict_ones = dict(zip(STRICT_MODELS, run_all(here, strict(1)), strict=True))
    for run, outcome in zip(strict(num_processes), ranks[-1][len(runs) :], strict=True):
        one = strict_ones[run.model]
        different = [name for name, weight in one.weights.items() if not weight.equal(outcome.weights[name])]
        assert different == [], run.parallel
    for rank in ranks:
        check_unmoved(runs, rank)


def check_equal(run: Run, one: Outcome, outcomes: tuple[Outcome, ...]) -> None:
    """Losses of each process, and the weights of all together: a pipeline's hold different ones."""
    for outcome in outcomes:
        assert spread(one, outcome) <= TOLERANCE, run
    weights = {name: weight for outcome in outcomes for name, weight in outcome.weights.items()}
    assert sorted(one.weights) == sorted(weights), run
    # AdamW divides by the size of gradients, so rounding in one that is nearly zero is seen in its weight.
    worst = max(float((one.weights[name] - weights[name]).abs().max()) for name in weights)
    assert worst <= 1e-4, (run, worst)


def check_unmoved(runs: list[Run], outcomes: list[Outcome]) -> None:
    """Whoever was evaluated between its steps has the bits of the same run without that."""
    for run, outcome in zip(runs, outcomes, strict=False):
        without = replace(run, evaluates=())
        if run.evaluates and without in runs:
            other = outcomes[runs.index(without)]
            assert outcome.losses == other.losses, run
            different = [name for name, weight in outcome.weights.items() if not weight.equal(other.weights[name])]
            assert different == [], run


class Net(nn.Module):
    """No language model: layers in a list, and one that is used on the first process alone, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.sometimes, self.never = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x_BD: Tensor, *, is_first: bool) -> Tensor:
        for block in self.blocks:
            x_BD = torch.tanh(block(x_BD))
        out_BD: Tensor = self.sometimes(x_BD) if is_first else x_BD
        return out_BD


def train_net(world: World, data: str) -> dict[str, Tensor]:
    torch.manual_seed(world.rank)  # each process begins with other weights, and takes those of process 0
    net = parallelize(Net(), P(data=data), world)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    x_BD = torch.linspace(-1, 1, 24).view(4, 6)
    for _ in range(2):
        rows = range(4)[world.rank * 4 // world.size : (world.rank + 1) * 4 // world.size]
        for row in rows:
            with no_sync(net, is_last=row == rows[-1]):
                net(x_BD[row : row + 1], is_first=row < 2).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: whole(tensor) for name, tensor in net.state_dict().items()}


def test_any_module_trains_alike(here: World) -> None:
    torch.manual_seed(0)
    start = Net().state_dict()
    one = train_net(here, "ddp")
    for found in run_distributed_test(train_net, 2, ("ddp",)):
        assert list(found) == list(start)
        for name, weight in found.items():
            torch.testing.assert_close(weight, one[name], rtol=1e-5, atol=1e-6)
        assert found["never.weight"].equal(start["never.weight"])
        assert not found["sometimes.weight"].equal(start["sometimes.weight"])
