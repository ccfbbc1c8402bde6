"""Probe of a version: the learner's log-probabilities of a few rows, which an engine compares with its own.

A fixed tolerance is wrong: a learner in bfloat16 differs from itself when only the shape of its microbatches changes, by more than any
tolerance that is useful in float32. The tolerance is a multiple of that difference, measured when the probe is made.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from windlass.post.objectives.logprobs import LogProbs, TokenScores
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.types import ScoreRequest
from windlass.post.weights.store import Probe
from windlass.train.batch import IGNORE

if TYPE_CHECKING:
    from torch import nn

    from windlass.post.rollout.engine import RolloutEngine

__all__ = ["FLOOR", "MULTIPLE", "check_probe", "make_probe"]

MULTIPLE = 8.0
"""Tolerance in units of the learner's largest difference from itself."""
FLOOR = 2e-5
"""Smallest tolerance: ten times the largest difference of float32 on a CPU, where a learner may equal itself by chance."""


def make_probe(
    model: nn.Module, rows: Sequence[Sequence[int]], *, multiple: float = MULTIPLE, floor: float = FLOOR
) -> Probe:
    """Return a probe of a model's current weights; costs two forward passes of the rows. Collective.

    Args:
        model: decoder that learns, in any mode, sharded or not.
        rows: token ids, at least two of each row; some rows of the length that is generated tell most.
        multiple: tolerance in units of the largest difference between all rows at once and each row alone.
        floor: smallest tolerance.
    """
    was_training = model.training
    model.eval()
    try:
        together = _scores(model, rows)
        alone = [_scores(model, [row])[0] for row in rows]
    finally:
        model.train(was_training)
    noise = max(
        abs(first - second)
        for one, two in zip(together, alone, strict=True)
        for first, second in zip(one, two, strict=True)
    )
    return Probe(
        requests=tuple(ScoreRequest(ids=tuple(row)) for row in rows),
        logp=tuple(together),
        tolerance=max(floor, multiple * noise),
    )


def _scores(model: nn.Module, rows: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    """Return the log-probabilities of each row's tokens but the first, from one forward pass."""
    longest = max(map(len, rows))
    device = next(model.parameters()).device
    # No token sees the padding after it.
    tokens_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    lengths_B1 = torch.tensor([[len(row)] for row in rows], device=device)
    is_counted_BT = torch.arange(longest, device=device) < lengths_B1 - 1
    labels_BT = torch.where(is_counted_BT, tokens_BT.roll(-1, dims=1), IGNORE)
    with torch.no_grad():
        scores = model(tokens_BT, labels_BT=labels_BT, loss=LogProbs())
    assert isinstance(scores, TokenScores)
    return [tuple(row_T[: len(ids) - 1]) for row_T, ids in zip(scores.logp.float().tolist(), rows, strict=True)]


def check_probe(engine: RolloutEngine, probe: Probe, version: int) -> float:
    """Compare an engine's log-probabilities with the learner's; return the largest difference.

    Raises:
        EngineError: it exceeds the probe's tolerance. The engine must not generate with these weights.
    """
    worst = 0.0
    for own, expected in zip(engine.score(probe.requests), probe.logp, strict=True):
        for first, second in zip(own, expected, strict=True):
            worst = max(worst, abs(first - second) if math.isfinite(first) else math.inf)
    if not worst <= probe.tolerance:
        raise EngineError(
            f"weights of version {version} are not the learner's: log-probabilities of its probe differ by {worst:.3g}, "
            f"and at most {probe.tolerance:.3g} is tolerated",
            hint="start another engine; if it fails too, engine and learner compute different models",
        )
    return worst
