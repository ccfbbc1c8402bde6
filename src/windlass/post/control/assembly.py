"""Batches from scored samples: advantages of whole groups, what is dropped afterwards, and rows of tokens.

A batch of rollouts is learned in one optimiser step or in several, one per mini-batch and epoch.

Legend: S answers of a batch, G groups.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from windlass.post.control.config import RewardsConfig, RolloutConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.shaping import shaped_rewards
from windlass.post.control.sharing import Members, row_length, shared_members, shared_rows
from windlass.post.data.batches import divide
from windlass.post.objectives.advantage import Advantages, advantages_of
from windlass.post.objectives.batch import TokenBatch, TokenRows
from windlass.post.objectives.config import AdvantageConfig
from windlass.train.batch import IGNORE
from windlass.train.data.protocol import Share

__all__ = ["BatchAssembly", "OpenBatch", "StreamScorer", "rollout_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScorer:
    """Source of a stream: log-probabilities of answers under some model.

    Attributes:
        score: returns the log-probability of each label of rows, (B, T) on the host.
        prompt: returns what this model reads instead of a prompt of the policy; None: the same.
    """

    score: Callable[[TokenRows], Tensor]
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None


class _Choice(NamedTuple):
    """Advantages, rewards, the place of each answer's group, and whether the answer is learned."""

    found: Advantages
    rewards_S: Tensor
    groups_S: Tensor
    is_used_S: Tensor


class BatchAssembly:
    """Makes mini-batches of whole groups.

    Args:
        rewards: None: answers have no rewards, and all of them are used.
        weight: name of the weights that mark the answers' tokens.
        microbatch_tokens: most tokens of a microbatch, padding included.
        pad_id: id of padding.
        width: of the model's residual stream, from which follows how many members of a group share a row; 0: none do.
        streams: what scores each further stream, such as `reference`, once per batch.
        share: this process's share of the microbatches.

    Attributes:
        metrics: means over the last batch.
    """

    def __init__(
        self,
        rollout: RolloutConfig,
        rewards: RewardsConfig | None,
        advantage: AdvantageConfig,
        *,
        weight: str,
        microbatch_tokens: int,
        pad_id: int,
        width: int = 0,
        streams: Mapping[str, StreamScorer] | None = None,
        share: Share | None = None,
    ) -> None:
        self._rollout, self._rewards, self._advantage, self._weight = rollout, rewards, advantage, weight
        self._microbatch_tokens, self._pad_id, self._width = microbatch_tokens, pad_id, width
        self._streams, self._share = dict(streams or {}), share or Share()
        self.metrics: dict[str, float] = {}

    def batches(self, scored: Sequence[ScoredSample]) -> tuple[TokenBatch, ...]:
        """Return the mini-batches of whole groups, in the order of group and member.

        Groups that are used are divided evenly; with fewer of them than mini-batches, some mini-batches are empty.
        """
        found, rewards_S, groups_S, is_used_S = self._chosen(scored)
        self._tell(scored, found, is_used_S)
        if self._rewards is not None and self._rewards.is_shaped and not self._rewards.normalise:
            raw_S = torch.tensor([each.reward for each in scored], dtype=torch.float64)
            self.metrics["rollout/shaping"] = float((rewards_S - raw_S).nanmean())
        values = found.values_S.tolist()
        shares = np.array_split(groups_S[is_used_S].unique().numpy(), self._rollout.minibatches)
        places = [(is_used_S & torch.isin(groups_S, torch.from_numpy(share))).nonzero()[:, 0] for share in shares]
        return tuple(self._batch([(scored[at], values[at]) for at in place.tolist()]) for place in places)

    def num_used_groups(self, scored: Sequence[ScoredSample]) -> int:
        """Return the number of groups that would be learned."""
        chosen = self._chosen(scored)
        return len(chosen.groups_S[chosen.is_used_S].unique())

    def _chosen(self, scored: Sequence[ScoredSample]) -> _Choice:
        _, groups_S = torch.unique(torch.tensor([each.sample.id.group for each in scored]), return_inverse=True)
        is_whole_S = torch.tensor([each.sample.finish == "stop" for each in scored])
        is_kept_S = is_whole_S if self._rollout.mask_truncated else torch.ones_like(is_whole_S)
        rewards_S = torch.zeros(len(scored), dtype=torch.float64)
        if self._rewards is not None:
            longest = self._rollout.max_new_tokens
            rewards_S = shaped_rewards(scored, groups_S, self._rewards, max_new_tokens=longest)
        found = advantages_of(rewards_S, groups_S, self._advantage, is_kept_S=is_kept_S)
        is_used_S = found.is_trained_S
        if self._rewards is not None and self._rollout.drop_constant_groups:
            is_used_S = is_used_S & found.has_variance_G[groups_S]
        return _Choice(found, rewards_S, groups_S, is_used_S)

    def nothing(self) -> TokenBatch:
        """Return a batch that nothing is learned from."""
        return self._batch(())

    def _batch(self, answers: Sequence[tuple[ScoredSample, float]]) -> TokenBatch:
        """Return a mini-batch with all streams."""
        rows: Sequence[Members] = [[each] for each in answers]
        if self._rollout.share_prompts and self._width:
            rows = shared_members(answers, width=self._width, budget=self._microbatch_tokens)
        # a row of a single answer has its last token too
        costs = {at: [row_length(members) + (len(members) == 1)] for at, members in enumerate(rows)}
        shares = divide(costs, num_processes=self._share.world, budget=self._microbatch_tokens)
        parts = shares[self._share.rank] or [()]
        return TokenBatch(parts=tuple(self._part([rows[at] for at in part]) for part in parts))

    def _part(self, members: Sequence[Members]) -> TokenRows:
        rows = self._rows(members)
        is_label_BT = rows.labels_BT != IGNORE
        found: dict[str, Tensor] = {}
        for name, scorer in self._streams.items() if members or self._share.world > 1 else ():  # sharded ones need all
            read = rows
            if scorer.prompt is not None:
                read = self._rows(members, scorer.prompt)
            scores_N = scorer.score(read)[read.labels_BT != IGNORE]
            found[name] = torch.zeros(rows.labels_BT.shape).masked_scatter(is_label_BT, scores_N)
        return replace(rows, streams={**rows.streams, **found})

    def _rows(self, rows: Sequence[Members], prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> TokenRows:
        if any(len(members) > 1 for members in rows):
            return shared_rows(rows, pad_id=self._pad_id, weight=self._weight, prompt=prompt)
        answers = [answer for members in rows for answer in members]
        return rollout_rows(answers, pad_id=self._pad_id, weight=self._weight, prompt=prompt)

    def _tell(self, scored: Sequence[ScoredSample], found: Advantages, is_used_S: Tensor) -> None:
        """Set the metrics of the batch."""
        rewards = [each.reward for each in scored if each.reward == each.reward]
        lengths = [len(each.sample.ids) for each in scored]
        self.metrics = {}
        if self._rewards is not None:
            self.metrics["rollout/reward"] = float(np.mean(rewards)) if rewards else float("nan")
            self.metrics["rollout/unscored"] = float(len(scored) - len(rewards))
            self.metrics["rollout/constant_groups"] = float(found.num_constant_groups)
        for name in scored[0].rewards:
            values = [value for each in scored if (value := each.rewards[name]) is not None]
            self.metrics[f"rollout/reward_{name}"] = float(np.mean(values)) if values else float("nan")
        self.metrics["rollout/answer_tokens"] = float(np.mean(lengths))
        self.metrics["rollout/truncated"] = float(np.mean([each.sample.finish == "length" for each in scored]))
        self.metrics["rollout/trained_answers"] = float(is_used_S.sum())


class OpenBatch:
    """The optimiser steps that are left of a batch of rollouts; a checkpoint keeps them, streams included.

    Args:
        epochs: how often each mini-batch is learned; all of them in order, then again.

    Attributes:
        metrics: of the whole batch.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self.metrics: Mapping[str, float] = {}
        self._batches: tuple[TokenBatch, ...] = ()
        self._num_taken, self._text = 0, ""

    @property
    def num_left(self) -> int:
        """Return the number of steps that are left."""
        return self._epochs * len(self._batches) - self._num_taken

    def fill(self, batches: tuple[TokenBatch, ...], metrics: Mapping[str, float]) -> None:
        """Begin with the mini-batches of another batch."""
        self._batches, self._num_taken, self._text = batches, 0, ""
        self.metrics = dict(metrics)

    def take(self) -> TokenBatch:
        """Return the batch of the next step."""
        self._num_taken += 1
        return self._batches[(self._num_taken - 1) % len(self._batches)]

    def state_dict(self) -> Mapping[str, int | str]:
        """Return the steps taken of an unfinished batch and its rows; nothing between two batches."""
        if not self.num_left or not self._num_taken:
            return {}
        if not self._text:
            data = io.BytesIO()
            rows = [[_tensors(part) for part in batch.parts] for batch in self._batches]
            torch.save({"rows": rows, "metrics": self.metrics}, data)
            self._text = base64.b85encode(zlib.compress(data.getvalue(), 1)).decode()
        return {"open_batch": self._text, "steps_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore what `state_dict` returned."""
        self.fill((), {})
        if "open_batch" not in state:
            return
        stored = torch.load(io.BytesIO(zlib.decompress(base64.b85decode(str(state["open_batch"])))), weights_only=True)
        batches = (TokenBatch(parts=tuple(TokenRows(**part) for part in parts)) for parts in stored["rows"])
        self.fill(tuple(batches), stored["metrics"])
        self._num_taken = int(state["steps_taken"])


def _tensors(rows: TokenRows) -> dict[str, object]:
    found = {each.name: getattr(rows, each.name) for each in fields(rows)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in found.items()}


def rollout_rows(
    answers: Sequence[tuple[ScoredSample, float]],
    *,
    pad_id: int,
    weight: str = "policy",
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
) -> TokenRows:
    """Return a microbatch of answers with their advantages, one per row, padded on the right."""
    prompts = [prompt(scored.prompt_ids) for scored, _ in answers]
    lengths = [len(prompt) + len(scored.sample.ids) for prompt, (scored, _) in zip(prompts, answers, strict=True)]
    shape = (max(1, len(answers)), max(lengths, default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    sequences_BT = np.full(shape, -1, dtype=np.int32)
    advantage_BT, behaviour_BT = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, (scored, advantage) in enumerate(answers):
        begin, end = len(prompts[row]), lengths[row]
        tokens_BT[row, :end] = [*prompts[row], *scored.sample.ids]
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
        weights={weight: torch.from_numpy((labels_BT != IGNORE).astype(np.float32))},
        streams={"advantage": torch.from_numpy(advantage_BT), "behaviour": torch.from_numpy(behaviour_BT)},
    )
