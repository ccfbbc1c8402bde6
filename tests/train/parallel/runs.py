"""A few training steps of a tiny decoder by some plan: what the tests of this folder compare.

Legend: B rows of the whole batch, T tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from tests.train.parallel.shapes import TINY
from windlass.train.batch import IGNORE, Batch
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder, LossSums
from windlass.train.model.init import init_weights
from windlass.train.modules.language import LanguageModule
from windlass.train.modules.pipelined import PipelinedModule
from windlass.train.optim.clip import clip
from windlass.train.optim.config import LossConfig
from windlass.train.parallel.apply import parallelize, pipeline_of
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.strict import MicrobatchTree
from windlass.train.parallel.sync import no_sync, sync_gradients
from windlass.train.parallel.world import World

__all__ = ["Outcome", "Run", "batches", "run_all", "spread", "whole"]

LOSS = LossConfig(z_loss=1e-3)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One plan, and the batch it sees."""

    parallel: ParallelConfig
    model: ModelConfig = TINY
    num_steps: int = 3
    num_rows: int = 8
    num_microbatches: int = 2
    length: int = 16
    has_documents: bool = False
    evaluates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Loss of each step over the whole batch, and the weights after the last, whole.

    Attributes:
        evaluated: after each step, losses of the first `Run.evaluates` rows of its batch.
    """

    losses: list[float]
    weights: dict[str, Tensor]
    evaluated: list[float]


def run_all(world: World, runs: list[Run]) -> list[Outcome]:
    """One after another, in the same processes."""
    return [_run(world, run) for run in runs]


def batches(run: Run) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Tokens, labels and documents of each step's whole batch; some labels do not count."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(run.num_steps):
        row_BT = torch.randint(0, run.model.vocab_size, (run.num_rows, run.length + 1), generator=generator)
        labels_BT = row_BT[:, 1:].clone()
        labels_BT[torch.rand(labels_BT.shape, generator=generator) < 0.2] = IGNORE
        ends_BT = torch.rand(labels_BT.shape, generator=generator) < 0.2
        documents_BT = ends_BT.cumsum(dim=1).int() if run.has_documents else None
        made.append((row_BT[:, :-1].clone(), labels_BT, documents_BT))
    return made


def _run(world: World, run: Run) -> Outcome:
    world.mesh = world.expert_mesh = None
    with torch.device("meta"):
        model = Decoder(run.model)
    parallelize(model, run.parallel, world)
    init_weights(model, seed=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False, fused=False)
    stages = cast("DeviceMesh", world.mesh)["pp"].get_group() if pipeline_of(model) is not None else None
    losses, evaluated = [], []
    for batch in batches(run):
        losses.append(_step(world, run, model, *batch))
        clip(model.parameters(), 1.0, is_strict=run.parallel.strict is not None, stages=stages)
        optimizer.step()
        optimizer.zero_grad()
        evaluated += [_evaluate(world, model, optimizer, *batch, num_rows=num_rows) for num_rows in run.evaluates]
    return Outcome(losses, {name: whole(tensor) for name, tensor in model.state_dict().items()}, evaluated)


def _evaluate(
    world: World,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    tokens_BT: Tensor,
    labels_BT: Tensor,
    documents_BT: Tensor | None,
    *,
    num_rows: int,
) -> float:
    """Mean loss of the first rows, which each data-parallel process computes; leaves no gradients."""
    module = (LanguageModule if pipeline_of(model) is None else PipelinedModule)(model, optimizer, world=world)
    documents = None if documents_BT is None else documents_BT[:num_rows]
    rows = Batch(
        tokens_BT=tokens_BT[:num_rows],
        labels_BT=labels_BT[:num_rows],
        documents_BT=documents,
        num_rows_step=num_rows,
    )
    found = module.eval_batch(rows)
    assert not found["loss"].requires_grad
    assert all(parameter.grad is None for parameter in model.parameters())
    return float(found["loss"]) / float(found["weight"])


def _step(
    world: World, run: Run, model: Decoder, tokens_BT: Tensor, labels_BT: Tensor, documents_BT: Tensor | None
) -> float:
    """Forward and backward; returns the mean loss of the whole batch."""
    weight = float((labels_BT != IGNORE).sum())
    strict, pipe = run.parallel.strict, pipeline_of(model)
    num = 1 if pipe is not None else run.num_microbatches if strict is None else strict.shards // world.share.world
    rows = run.num_rows // world.share.world // num
    tree = MicrobatchTree(model.parameters()) if strict is not None else None
    total = 0.0
    for number in range(num):
        start = (number * world.share.world + world.share.rank) * rows
        part = slice(start, start + rows)
        documents = documents_BT[part] if documents_BT is not None else None
        if pipe is not None:
            with no_sync(model, is_last=False):
                sums = pipe.train_batch(tokens_BT[part], documents, labels_BT[part], loss=LOSS, total_weight=weight)
            sync_gradients(model)
        else:
            with no_sync(model, is_last=tree is not None or number == num - 1):
                sums = model(tokens_BT[part], documents, labels_BT=labels_BT[part], loss=LOSS)
                assert isinstance(sums, LossSums)
                ((sums.loss + sums.z_loss + sums.aux) / weight).backward()
        if tree is not None:
            tree.add()
        total += float(sums.loss.detach()) / weight
    if tree is not None:
        tree.finish()
    return world.sum_on_host([total])[0] * world.share.world / world.size


def whole(tensor: Tensor) -> Tensor:
    """A tensor of a state dict, gathered."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def spread(one: Outcome, other: Outcome) -> float:
    """Largest relative difference between losses of the same step, of training and evaluation."""
    pairs = zip([*one.losses, *one.evaluated], [*other.losses, *other.evaluated], strict=True)
    return max(abs(a - b) / abs(a) for a, b in pairs)
