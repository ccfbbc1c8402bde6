"""Batches from scored samples: advantages of whole groups, what is dropped afterwards, and rows of tokens.

Legend: S answers of a batch, G groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from windlass.post.control.config import RolloutConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.data.batches import divide
from windlass.post.objectives.advantage import Advantages, advantages_of
from windlass.post.objectives.batch import TokenBatch, TokenRows
from windlass.post.objectives.config import AdvantageConfig
from windlass.train.batch import IGNORE

__all__ = ["BatchAssembly", "rollout_rows"]


class BatchAssembly:
    """Makes a batch of whole groups.

    Args:
        microbatch_tokens: most tokens of a microbatch, padding included.
        pad_id: id of padding.

    Attributes:
        metrics: means over the last batch.
    """

    def __init__(
        self, rollout: RolloutConfig, advantage: AdvantageConfig, *, microbatch_tokens: int, pad_id: int
    ) -> None:
        self._rollout, self._advantage = rollout, advantage
        self._microbatch_tokens, self._pad_id = microbatch_tokens, pad_id
        self.metrics: dict[str, float] = {}

    def batch(self, scored: Sequence[ScoredSample]) -> TokenBatch:
        """Return the batch of whole groups, in the order of group and member."""
        rewards_S = torch.tensor([each.reward for each in scored], dtype=torch.float64)
        _, groups_S = torch.unique(torch.tensor([each.sample.id.group for each in scored]), return_inverse=True)
        is_whole_S = torch.tensor([each.sample.finish == "stop" for each in scored])
        is_kept_S = is_whole_S if self._rollout.mask_truncated else torch.ones_like(is_whole_S)
        found = advantages_of(rewards_S, groups_S, self._advantage, is_kept_S=is_kept_S)
        is_used_S = found.is_trained_S
        if self._rollout.drop_constant_groups:
            is_used_S = is_used_S & found.has_variance_G[groups_S]
        self._tell(scored, found, is_used_S)
        used = is_used_S.nonzero()[:, 0].tolist()
        costs = {place: [len(scored[place].prompt_ids) + len(scored[place].sample.ids)] for place in used}
        parts = divide(costs, num_processes=1, budget=self._microbatch_tokens)[0] if used else [()]
        values = found.values_S.tolist()
        return TokenBatch(
            parts=tuple(
                rollout_rows([(scored[place], values[place]) for place in part], pad_id=self._pad_id) for part in parts
            )
        )

    def _tell(self, scored: Sequence[ScoredSample], found: Advantages, is_used_S: Tensor) -> None:
        """Set the metrics of the batch."""
        rewards = [each.reward for each in scored if each.reward == each.reward]
        lengths = [len(each.sample.ids) for each in scored]
        self.metrics = {}
        self.metrics["rollout/reward"] = float(np.mean(rewards)) if rewards else float("nan")
        for name in scored[0].rewards:
            values = [value for each in scored if (value := each.rewards[name]) is not None]
            self.metrics[f"rollout/reward_{name}"] = float(np.mean(values)) if values else float("nan")
        self.metrics["rollout/unscored"] = float(len(scored) - len(rewards))
        self.metrics["rollout/answer_tokens"] = float(np.mean(lengths))
        self.metrics["rollout/truncated"] = float(np.mean([each.sample.finish == "length" for each in scored]))
        self.metrics["rollout/constant_groups"] = float(found.num_constant_groups)
        self.metrics["rollout/trained_answers"] = float(is_used_S.sum())


def rollout_rows(answers: Sequence[tuple[ScoredSample, float]], *, pad_id: int) -> TokenRows:
    """Return a microbatch of answers with their advantages, one per row, padded on the right."""
    lengths = [len(scored.prompt_ids) + len(scored.sample.ids) for scored, _ in answers]
    shape = (max(1, len(answers)), max(lengths, default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    sequences_BT = np.full(shape, -1, dtype=np.int32)
    advantage_BT, behaviour_BT = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, (scored, advantage) in enumerate(answers):
        begin, end = len(scored.prompt_ids), lengths[row]
        tokens_BT[row, :end] = [*scored.prompt_ids, *scored.sample.ids]
        labelled = slice(begin - 1, end - 1)
        labels_BT[row, labelled] = scored.sample.ids
        sequences_BT[row, labelled] = row
        advantage_BT[row, labelled] = advantage
        behaviour_BT[row, labelled] = scored.sample.logp
    return TokenRows(
        tokens_BT=torch.from_numpy(tokens_BT),
        labels_BT=torch.from_numpy(labels_BT),
        sequences_BT=torch.from_numpy(sequences_BT),
        num_sequences=len(answers),
        weights={"policy": torch.from_numpy((labels_BT != IGNORE).astype(np.float32))},
        streams={"advantage": torch.from_numpy(advantage_BT), "behaviour": torch.from_numpy(behaviour_BT)},
    )
