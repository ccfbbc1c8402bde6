"""Over three learners with unequal shares and a sharded model, an objective has the gradient of one learner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.post.objectives.rows import Piece, laid_out
from tests.post.objectives.test_layouts import CORRECTION, EVERY_LOSS, PENALTY, STREAMS
from tests.train.parallel.shapes import KINDS
from windlass.post.objectives.batch import Objective, Scores, TokenRows
from windlass.post.objectives.config import PolicyConfig, PreferenceConfig
from windlass.post.objectives.logprobs import LogProbs, TokenScores, token_logprobs
from windlass.post.objectives.policy import PolicyObjective
from windlass.post.objectives.preference import PreferenceObjective
from windlass.post.objectives.supervised import SupervisedObjective
from windlass.testing import run_distributed_test
from windlass.train.errors import TrainingError
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.config import ParallelConfig
from windlass.train.parallel.sync import no_sync
from windlass.train.parallel.world import World

pytestmark = pytest.mark.system

LENGTHS = [9, 4, 12, 7, 3, 10]
SHARES: list[list[list[list[int]] | None]] = [[[[0], [1]], [[2], [3]]], [[[4, 5]], None], [None, None]]
"""Rows of each learner's two microbatches; the second and third learner have empty ones."""

GRPO = PolicyConfig(denominator="sequence", kl=PENALTY, correction=CORRECTION, entropy_bonus=0.1)
OBJECTIVES: dict[str, Objective] = {
    "grpo": PolicyObjective(config=GRPO),
    "preference": PreferenceObjective(config=PreferenceConfig(losses=EVERY_LOSS)),
    "supervised": SupervisedObjective(),
}
CASES: list[tuple[str, str]] = [*(("peri", name) for name in OBJECTIVES), ("qwen", "grpo")]
"""Models, the second with one matrix for embedding and head, and objectives."""


def part_of(layout: list[list[int]] | None) -> TokenRows:
    """Microbatch of random sequences; its first tokens, the prompt, do not count. None: an empty one."""
    generator = torch.Generator().manual_seed(6)
    own = []
    for length in LENGTHS:
        mask = (torch.arange(length) >= 2).float()
        streams = {name: -torch.randn(length, generator=generator).exp() for name in STREAMS}
        tokens = torch.randint(0, 92, (length + 1,), generator=generator)
        weights = dict.fromkeys(("policy", "preference", "nll"), mask)
        own.append(Piece(tokens_T=tokens[:-1], labels_T=tokens[1:], weights=weights, streams=streams))
    rows = laid_out(layout or [[0]], own)
    pairs = torch.arange(rows.num_sequences if layout else 0, dtype=torch.int32).view(-1, 2)
    if layout:
        return replace(rows, pairs_P2=pairs)
    weights = {name: weight * 0 for name, weight in rows.weights.items()}
    return replace(
        rows, weights=weights, pairs_P2=pairs, num_sequences=0, sequences_BT=torch.full_like(rows.sequences_BT, -1)
    )


def gradients(world: World, kind: str, name: str, parts: list[TokenRows]) -> dict[str, Tensor]:
    """Gradients of all parameters, whole."""
    world.mesh = world.expert_mesh = None
    with torch.device("meta"):
        model = Decoder(KINDS[kind])
    parallelize(model, ParallelConfig(data="fsdp"), world)
    init_weights(model, seed=3)
    objective = OBJECTIVES[name]
    mine = [sum(column) for column in zip(*(objective.weigh(part) for part in parts), strict=True)]
    weights = world.sum_on_host(mine)
    loss_function = LogProbs(
        wants_entropy=objective.wants_entropy, wants_log_squares=objective.wants_log_squares, temperature=0.9
    )
    for place, part in enumerate(parts):
        with no_sync(model, is_last=place == len(parts) - 1):
            found = model(part.tokens_BT, part.documents_BT, labels_BT=part.labels_BT, loss=loss_function)
            assert isinstance(found, TokenScores)
            scores = Scores(logp_BT=found.logp, entropy_BT=found.entropy, log_squares_BT=found.log_squares)
            sums = objective.sums(part, scores)
            losses = [sums.losses[key] / weight for key, weight in zip(objective.components, weights, strict=True)]
            torch.stack(losses).sum().backward()
    return {
        key: (weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad).clone()
        for key, weight in model.named_parameters()
        if weight.grad is not None
    }


def of_rank(world: World) -> tuple[list[dict[str, Tensor]], str]:
    """Gradients of this learner, of each model and objective; and the refusal of a sharded head."""
    parts = [part_of(layout) for layout in SHARES[world.rank]]
    return [gradients(world, kind, name, parts) for kind, name in CASES], refusal(world)


def refusal(world: World) -> str:
    """Ask for log-probabilities from a head whose vocabulary is sharded."""
    head = distribute_tensor(torch.ones(6, 4), init_device_mesh("cpu", (world.size,)), [Shard(0)])
    try:
        token_logprobs(torch.ones(2, 4), head, torch.zeros(2, dtype=torch.int64))
    except TrainingError as error:
        return f"{error}; {error.hint}"
    return "not refused"


def test_three_learners_with_unequal_shares_have_the_gradient_of_one() -> None:
    ranks = run_distributed_test(of_rank, 3)
    here = World(device=torch.device("cpu"))
    parts = [part_of([[0], [1], [2], [3], [4], [5]])]
    expected = [gradients(here, kind, name, parts) for kind, name in CASES]
    message = "log-probabilities of tokens need the whole head, but its vocabulary is sharded over processes"
    for found, refused in ranks:
        assert refused == f"{message}; set `parallel.tensor=1`"
        for own, wanted in zip(found, expected, strict=True):
            assert sorted(own) == sorted(wanted)
            largest = max(float(grad.abs().max()) for grad in wanted.values())
            assert largest > 1e-3
            torch.testing.assert_close(own, wanted, rtol=0.0, atol=1e-5 * largest)
