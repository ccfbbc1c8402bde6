"""Batches from scored samples: advantages of whole groups, what is dropped afterwards, and rows of tokens.

A batch of rollouts is learned in one optimiser step or in several, one per mini-batch and epoch.

Legend: S answers of a batch, G groups.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from windlass.post.control.config import RewardsConfig, RolloutConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.shaping import shaped_rewards, token_values, turn_rewards
from windlass.post.control.sharing import Members, answer_sequences, row_lengths, shared_members, shared_rows
from windlass.post.data.batches import divide
from windlass.post.objectives.advantage import Advantages, advantages_of, turn_advantages_of
from windlass.post.objectives.batch import TokenBatch, TokenRows
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import Episode, SampleId, ScoreRequest
from windlass.train.batch import IGNORE
from windlass.train.data.protocol import Share

__all__ = ["PROXIMAL", "BatchAssembly", "OpenBatch", "StreamScorer", "rollout_rows"]

PROXIMAL = "proximal"
"""Stream of the policy's log-probabilities at the start of a batch, which cannot be computed again within it."""


_NO_EPISODE = Episode(environment="")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScorer:
    """Source of a stream: log-probabilities of answers under some model.

    Attributes:
        score: returns the log-probability of each label of rows, (B, T) on the host.
        engine: scores answers instead, such as a server; it takes sequences and no rows.
        prompt: returns what this model reads instead of a prompt of the policy; None: the same.
    """

    score: Callable[[TokenRows], Tensor] | None = None
    engine: RolloutEngine | None = None
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] | None = None


class _Choice(NamedTuple):
    """Advantages, rewards, the place of each answer's group, whether the answer is learned, and its advantage.

    An answer whose turns have advantages of their own has one for each of its tokens.
    """

    found: Advantages
    rewards_S: Tensor
    groups_S: Tensor
    is_used_S: Tensor
    values: Sequence[float | np.ndarray]


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
        self._known: Mapping[SampleId, Tensor] = {}
        self._proximal: dict[SampleId, Tensor] = {}
        self.metrics: dict[str, float] = {}

    def batches(self, scored: Sequence[ScoredSample], *, proximal: str | None = None) -> tuple[TokenBatch, ...]:
        """Return the mini-batches of whole groups, in the order of group and member.

        Groups that are used are divided evenly; with fewer of them than mini-batches, some mini-batches are empty.

        Args:
            proximal: what `proximal` returned when this batch began; None: it begins now.
        """
        found, rewards_S, groups_S, is_used_S, values = self._chosen(scored)
        self._known, self._proximal = {}, {}
        if proximal is not None:
            used = [scored[place].sample for place in is_used_S.nonzero()[:, 0].tolist()]
            stored_N = torch.from_numpy(np.frombuffer(base64.b64decode(proximal), dtype=np.float32).copy())
            scores = stored_N.split([sample.num_policy_tokens for sample in used])
            self._known = {sample.id: score for sample, score in zip(used, scores, strict=True)}
        self._tell(scored, found, is_used_S)
        if self._rewards is not None and self._rewards.is_shaped and not self._rewards.normalise:
            raw_S = torch.tensor([each.reward for each in scored], dtype=torch.float64)
            self.metrics["rollout/shaping"] = float((rewards_S - raw_S).nanmean())
        shares = np.array_split(groups_S[is_used_S].unique().numpy(), self._rollout.minibatches)
        places = [(is_used_S & torch.isin(groups_S, torch.from_numpy(share))).nonzero()[:, 0] for share in shares]
        return tuple(self._batch([(scored[at], values[at]) for at in place.tolist()]) for place in places)

    def proximal(self, gather: Callable[[Mapping[SampleId, Tensor]], Sequence[Mapping[SampleId, Tensor]]]) -> str:
        """Return the policy's log-probabilities at the start of the last batch as text. Collective.

        Args:
            gather: returns the values of all processes of the learner.
        """
        scores = {each: value for share in gather(self._proximal) for each, value in share.items()}
        content = torch.cat([value for _, value in sorted(scores.items())] or [torch.zeros(0)])
        return base64.b64encode(content.float().numpy().tobytes()).decode()

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
        is_kept_S = is_kept_S & torch.tensor([each.sample.num_policy_tokens > 0 for each in scored])
        if self._rewards is None:  # nothing else tells that an episode failed
            is_kept_S = is_kept_S & torch.tensor([not (each.sample.episode or _NO_EPISODE).error for each in scored])
        values: list[float | np.ndarray]
        if self._advantage.turns == "process":
            turns = [turn_rewards(each, reward) for each, reward in zip(scored, rewards_S.tolist(), strict=True)]
            found, parts = turn_advantages_of(turns, groups_S, self._advantage, is_kept_S=is_kept_S)
            values = [token_values(each, part) for each, part in zip(scored, parts, strict=True)]
        else:
            found = advantages_of(rewards_S, groups_S, self._advantage, is_kept_S=is_kept_S)
            values = list(found.values_S.tolist())
        is_used_S = found.is_trained_S
        if self._rewards is not None and self._rollout.drop_constant_groups:
            is_used_S = is_used_S & found.has_variance_G[groups_S]
        return _Choice(found, rewards_S, groups_S, is_used_S, values)

    def nothing(self) -> TokenBatch:
        """Return a batch that nothing is learned from."""
        return self._batch(())

    def _batch(self, answers: Members) -> TokenBatch:
        """Return a mini-batch with all streams."""
        rows: Sequence[Members] = [[each] for each in answers]
        if self._rollout.share_prompts and self._width:
            rows = shared_members(answers, width=self._width, budget=self._microbatch_tokens)
        costs = {at: row_lengths(members) for at, members in enumerate(rows)}
        shares = divide(costs, num_processes=self._share.world, budget=self._microbatch_tokens)
        parts = shares[self._share.rank] or [()]
        return TokenBatch(parts=tuple(self._part([rows[at] for at in part]) for part in parts))

    def _part(self, members: Sequence[Members]) -> TokenRows:
        rows = self._rows(members)
        is_label_BT = rows.labels_BT != IGNORE
        found: dict[str, Tensor] = {}
        samples = [scored.sample for each in members for scored, _ in each]
        for name, scorer in self._streams.items():
            if not members and self._share.world == 1:  # sharded models need all processes, whatever they score
                found[name] = torch.zeros(rows.labels_BT.shape)
                continue
            if name == PROXIMAL and self._known:
                scores_N = torch.cat([self._known[sample.id] for sample in samples] or [torch.zeros(0)])
            else:
                scores_N = self._scores(scorer, members, rows)
            if name == PROXIMAL:
                parts = scores_N.split([sample.num_policy_tokens for sample in samples])
                self._proximal |= {sample.id: part for sample, part in zip(samples, parts, strict=True)}
            found[name] = torch.zeros(rows.labels_BT.shape).masked_scatter(is_label_BT, scores_N)
        return replace(rows, streams={**rows.streams, **found})

    def _scores(self, scorer: StreamScorer, members: Sequence[Members], rows: TokenRows) -> Tensor:
        """Return the log-probabilities of all labels, in the order of rows and members."""
        if scorer.score is not None:
            read = rows if scorer.prompt is None else self._rows(members, scorer.prompt)
            return scorer.score(read)[read.labels_BT != IGNORE]
        assert scorer.engine is not None
        samples = [scored for each in members for scored, _ in each]
        prompts = [(scorer.prompt or tuple)(scored.prompt_ids) for scored in samples]
        requests = [
            ScoreRequest(ids=(*prompt, *scored.sample.ids), start=len(prompt))
            for prompt, scored in zip(prompts, samples, strict=True)
        ]
        return torch.tensor([value for values in scorer.engine.score(requests) for value in values])

    def _rows(self, rows: Sequence[Members], prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple) -> TokenRows:
        if any(len(members) > 1 for members in rows):
            return shared_rows(rows, pad_id=self._pad_id, weight=self._weight, prompt=prompt)
        answers = [answer for members in rows for answer in members]
        return rollout_rows(answers, pad_id=self._pad_id, weight=self._weight, prompt=prompt)

    def _tell(self, scored: Sequence[ScoredSample], found: Advantages, is_used_S: Tensor) -> None:
        """Set the metrics of the batch."""
        rewards = [each.reward for each in scored if each.reward == each.reward]
        lengths = [each.sample.num_policy_tokens for each in scored]
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
        self.metrics |= _environment_metrics(scored)


def _environment_metrics(scored: Sequence[ScoredSample]) -> dict[str, float]:
    """Return metrics of each environment: its answers, their rewards and turns, and those that it did not finish."""
    episodes: dict[str, list[Episode]] = {}
    for each in scored:
        if each.sample.episode is not None:
            episodes.setdefault(each.sample.episode.environment, []).append(each.sample.episode)
    found: dict[str, float] = {}
    for name, members in episodes.items():
        rewards = [reward for each in members if (reward := each.reward) is not None]
        found |= {
            f"environment/answers_{name}": float(len(members)),
            f"environment/reward_{name}": float(np.mean(rewards)) if rewards else float("nan"),
            f"environment/turns_{name}": float(np.mean([len(each.turns) for each in members])),
            f"environment/unscored_{name}": float(len(members) - len(rewards)),
            f"environment/forks_{name}": float(sum(len(each.forks) for each in members)),
        }
    return found


class OpenBatch:
    """The optimiser steps that are left of a batch of rollouts.

    Its samples are stored, and what is computed of them can be computed again; but for the log-probabilities of the policy
    at the start of the batch, which a checkpoint therefore keeps.

    Args:
        epochs: how often each mini-batch is learned; all of them in order, then again.

    Attributes:
        metrics: of the whole batch.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self.metrics: Mapping[str, float] = {}
        self._batches: tuple[TokenBatch, ...] = ()
        self._num_taken = 0
        self._kept: Mapping[str, str] = {}

    @property
    def num_left(self) -> int:
        """Return the number of steps that are left."""
        return self._epochs * len(self._batches) - self._num_taken

    def fill(
        self, batches: tuple[TokenBatch, ...], metrics: Mapping[str, float], kept: Mapping[str, str], num_taken: int = 0
    ) -> None:
        """Begin with the mini-batches of another batch, or continue it.

        Args:
            kept: what a checkpoint between two of its steps needs besides their number.
        """
        self._batches, self._num_taken, self._kept, self.metrics = batches, num_taken, kept, dict(metrics)

    def take(self) -> TokenBatch:
        """Return the batch of the next step."""
        self._num_taken += 1
        return self._batches[(self._num_taken - 1) % len(self._batches)]

    def state_dict(self) -> Mapping[str, int | str]:
        """Return the steps taken of an unfinished batch and what they need; nothing between two batches."""
        return {**self._kept, "steps_taken": self._num_taken} if self.num_left and self._num_taken else {}


def rollout_rows(
    answers: Members,
    *,
    pad_id: int,
    weight: str = "policy",
    prompt: Callable[[tuple[int, ...]], tuple[int, ...]] = tuple,
) -> TokenRows:
    """Return a microbatch of answers with their advantages, padded on the right: a row for each of their sequences."""
    sequences = [(number, each) for number, answer in enumerate(answers) for each in answer_sequences(answer)]
    prompts = [prompt(each.prompt_ids) for _, each in sequences]
    lengths = [len(prompt) + len(each.ids) for prompt, (_, each) in zip(prompts, sequences, strict=True)]
    shape = (max(1, len(sequences)), max(lengths, default=2))
    tokens_BT = np.full(shape, pad_id, dtype=np.int64)
    labels_BT = np.full(shape, IGNORE, dtype=np.int64)
    sequences_BT = np.full(shape, -1, dtype=np.int32)
    advantage_BT, behaviour_BT = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, (number, each) in enumerate(sequences):
        begin, end = len(prompts[row]), lengths[row]
        tokens_BT[row, :end] = [*prompts[row], *each.ids]
        labelled = slice(begin - 1, end - 1)
        labels_BT[row, labelled] = each.labels(IGNORE)
        sequences_BT[row, labelled] = each.labels(-1, number)
        advantage_BT[row, labelled] = each.advantage
        behaviour_BT[row, labelled] = each.logp
    return TokenRows(
        tokens_BT=torch.from_numpy(tokens_BT),
        labels_BT=torch.from_numpy(labels_BT),
        sequences_BT=torch.from_numpy(sequences_BT),
        num_sequences=len(answers),
        weights={weight: torch.from_numpy((labels_BT != IGNORE).astype(np.float32))},
        streams={"advantage": torch.from_numpy(advantage_BT), "behaviour": torch.from_numpy(behaviour_BT)},
    )
