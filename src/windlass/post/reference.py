"""Log-probabilities of tokens under models that are not trained: references, teachers, the policy of a batch's start.

Those of prepared rows are computed once and stored beside the rows. The name of a stored column is a digest of the model's weights and settings; the prepared data's key covers rows,
template, tokenizer and truncation. Folders may be moved or renamed without computing anything again.

Legend: B rows, T tokens of a row, N tokens of the data.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windlass.config.encode import to_data
from windlass.post.data.batches import collate, divide
from windlass.post.data.prepared import PreparedColumn, PreparedData
from windlass.post.objectives.batch import TokenRows
from windlass.post.objectives.logprobs import LogProbs, TokenScores
from windlass.train.batch import IGNORE
from windlass.train.model.adapters import adapter_off
from windlass.train.model.config import ModelConfig
from windlass.train.parallel.world import World

__all__ = ["RowScorer", "reference_column", "weights_digest"]

_ROWS_AT_ONCE = 256


class RowScorer:
    """Scores the labels of token rows with a model, without gradient.

    Args:
        model: a decoder after `parallelize`; the one that is trained scores with its weights at the time of the call.
        temperature: logits are divided by it, as at sampling.
        is_base: leave an adapter of the model out, so that the base that it is beside scores.
    """

    def __init__(
        self, model: nn.Module, device: torch.device, *, temperature: float = 1.0, is_base: bool = False
    ) -> None:
        self._model, self._device, self._is_base = model, device, is_base
        self._head = LogProbs(temperature=temperature)

    def __call__(self, rows: TokenRows) -> Tensor:
        """Return the log-probability of each label, float32 (B, T) on the host; 0 where there is none. Blocks; collective."""
        rows = rows.to(self._device)
        self._model.eval()
        with torch.no_grad(), adapter_off(self._model) if self._is_base else nullcontext():
            scores = self._model(
                rows.tokens_BT, rows.documents_BT, labels_BT=rows.labels_BT, loss=self._head, **rows.context()
            )
        assert isinstance(scores, TokenScores)
        return scores.logp.float().cpu()


def reference_column(
    data: PreparedData,
    model: nn.Module,
    config: ModelConfig,
    world: World,
    *,
    precision: str,
    budget: int,
    pad_id: int,
) -> PreparedColumn:
    """Return the reference log-probability of each learned token, from the store or by a forward pass. Collective.

    Args:
        model: reference model with its weights, after `parallelize`; an adapter is left out.
        precision: of its computation; part of the column's name.
        budget: most tokens of a microbatch, padding included.
    """
    name = f"reference-{weights_digest(model, config, precision)}"
    found = PreparedColumn.stored(data, name)
    if world.sum_on_host([float(found is None)])[0] == 0.0:
        assert found is not None
        return found
    with adapter_off(model):
        column = PreparedColumn(data=data, values_N=_forward(data, model, world, budget=budget, pad_id=pad_id))
    if world.is_main:
        column.store(name)
    return column


def weights_digest(model: nn.Module, config: ModelConfig, precision: str) -> str:
    """Return the digest of a model's weights and settings, without an adapter; gathers one by one. Collective."""
    digest = hashlib.sha256(json.dumps([to_data(config, keep_defaults=True), precision], sort_keys=True).encode())
    weights = {name: weight for name, weight in model.state_dict().items() if not name.endswith((".lora_a", ".lora_b"))}
    for name, weight in sorted(weights.items()):
        whole: Tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
        digest.update(name.encode())
        digest.update(whole.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _forward(data: PreparedData, model: nn.Module, world: World, *, budget: int, pad_id: int) -> np.ndarray:
    """Return log-probabilities of all learned tokens; 0 elsewhere. Each process computes a share of every block."""
    values_N = np.zeros(len(data.tokens_N), dtype=np.float32)
    lengths_S = data.lengths()
    scorer = RowScorer(model, world.device)
    for start in range(0, data.num_rows, _ROWS_AT_ONCE):
        rows = range(start, min(start + _ROWS_AT_ONCE, data.num_rows))
        costs = {row: [int(lengths_S[number]) for number in data.sequences_of(row)] for row in rows}
        parts = divide(costs, num_processes=world.share.world, budget=budget)
        for part in parts[world.share.rank]:
            batch = collate(data, part, weights=(), pad_id=pad_id)
            logp_BT, counts_BT = scorer(batch).numpy(), (batch.labels_BT != IGNORE).numpy()
            for place, number in enumerate(number for row in part for number in data.sequences_of(row)):
                end, length = int(data.ends_S[number]), int(lengths_S[number])
                own = np.where(counts_BT[place, : length - 1], logp_BT[place, : length - 1], 0.0)
                values_N[end - length + 1 : end] = own
    if world.share.world > 1:
        total = torch.from_numpy(values_N)
        torch.distributed.all_reduce(total)
        values_N = (total * (world.share.world / world.size)).numpy()
    return values_N
