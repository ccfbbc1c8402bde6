"""Rollouts as batches: prompts are answered by the current weights, scored, and become rows with advantages.

This is the synchronous loop: each batch is sampled by the policy that learns from it, in the learner's process. Samples
depend on the seed, the position of their prompt and the weights alone, so a resumed run generates the same ones again.

Legend: S answers of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from windlass.post.control.config import RolloutConfig
from windlass.post.data.batches import divide
from windlass.post.data.config import MixtureConfig
from windlass.post.data.position import PreparedPosition
from windlass.post.data.prepared import PreparedData
from windlass.post.objectives.advantage import Advantages, advantages_of
from windlass.post.objectives.batch import TokenBatch, TokenRows
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.rewards.pool import RewardPool, RewardRequest
from windlass.post.rewards.protocol import Answer
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling
from windlass.train.batch import IGNORE

__all__ = ["RolloutLoader", "ScoredSample", "rollout_rows"]

_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """A sample with its rewards.

    Attributes:
        prompt_ids: the prompt.
        rewards: value by verifier; None where the answer could not be scored.
        reward: weighted sum; NaN if a verifier could not score the answer.
    """

    sample: Sample
    prompt_ids: tuple[int, ...]
    text: str
    rewards: Mapping[str, float | None]
    reward: float


class RolloutLoader(PreparedPosition):
    """Endless batches of answers, in an order of prompts that is a pure function of seed, epoch and index.

    Args:
        engine: generates answers; gets the policy's weights before each batch.
        weights: returns the policy's current weights by name.
        decode: returns the text of token ids.
        pool: scores answers; closed by `close`.
        factors: factor of each verifier's value in the reward.
        stop_ids: tokens that end an answer.
        pad_id: id of padding.
        seed: seed of sampling, and of the order if the settings have none.

    Attributes:
        metrics: means over the last batch.
    """

    def __init__(
        self,
        data: PreparedData,
        config: MixtureConfig,
        rollout: RolloutConfig,
        advantage: AdvantageConfig,
        *,
        engine: RolloutEngine,
        weights: Callable[[], Mapping[str, Tensor]],
        decode: Callable[[Sequence[int]], str],
        pool: RewardPool,
        factors: Mapping[str, float],
        stop_ids: tuple[int, ...],
        pad_id: int,
        seed: int,
    ) -> None:
        super().__init__(data, config, seed=seed, fingerprint={"rollout.group_size": str(rollout.group_size)})
        self._rollout, self._advantage = rollout, advantage
        self._engine, self._weights, self._decode = engine, weights, decode
        self._pool, self._factors, self._pad_id = pool, dict(factors), pad_id
        self.metrics: dict[str, float] = {}
        self._sampling = Sampling(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_ids=stop_ids,
            stop_texts=rollout.stop_texts,
            seed=seed,
        )
        self._truths = data.ground_truths()

    def __iter__(self) -> Iterator[TokenBatch]:
        """Yield a batch of answers by the current weights, endlessly; blocks while they are generated and scored."""
        while True:
            first, count = self.position, self._config.batch_rows
            self._engine.load(self._weights(), version=first // count)
            rows = dict(enumerate(self.rows_at(first), start=first))
            samples = self._generated(rows)
            scored = self._scored(samples, rows)
            self.position = first + count
            yield self._batch(scored, first)

    def close(self) -> None:
        """End the processes of verifiers; idempotent. The next batch starts them again."""
        self._pool.close()

    def _generated(self, rows: Mapping[int, int]) -> list[Sample]:
        """Return all samples of the groups, in the order of group and member."""
        work = [
            SampleRequest(
                id=SampleId(group=group, member=member), prompt_ids=self._prompt(row), sampling=self._sampling
            )
            for group, row in rows.items()
            for member in range(self._rollout.group_size)
        ]
        done: list[Sample] = []
        submitted = 0
        while len(done) < len(work):
            submitted += self._engine.submit(work[submitted:]) if submitted < len(work) else 0
            done += self._engine.poll(_POLL_S)
        return sorted(done, key=lambda sample: sample.id)

    def _prompt(self, row: int) -> tuple[int, ...]:
        ids, _ = self._data.sequence(self._data.sequences_of(row)[0])
        return tuple(ids.tolist())

    def _scored(self, samples: Sequence[Sample], rows: Mapping[int, int]) -> list[ScoredSample]:
        """Return the samples with their rewards, in order; blocks until all are scored."""
        texts = [self._decode(sample.ids) for sample in samples]
        requests = [
            RewardRequest(
                verifier=name,
                answer=Answer(text=text, num_tokens=len(sample.ids), is_complete=sample.finish == "stop"),
                ground_truth=self._truths[rows[sample.id.group]] if self._truths else None,
            )
            for sample, text in zip(samples, texts, strict=True)
            for name in self._factors
        ]
        scores = iter(self._pool.score(requests))
        found: list[ScoredSample] = []
        for sample, text in zip(samples, texts, strict=True):
            values = {name: next(scores).value for name in self._factors}
            parts = [float("nan") if value is None else self._factors[name] * value for name, value in values.items()]
            prompt_ids = self._prompt(rows[sample.id.group])
            found.append(
                ScoredSample(sample=sample, prompt_ids=prompt_ids, text=text, rewards=values, reward=float(sum(parts)))
            )
        return found

    def _batch(self, scored: Sequence[ScoredSample], first: int) -> TokenBatch:
        rewards_S = torch.tensor([each.reward for each in scored], dtype=torch.float64)
        groups_S = torch.tensor([each.sample.id.group - first for each in scored])
        is_whole_S = torch.tensor([each.sample.finish == "stop" for each in scored])
        is_kept_S = is_whole_S if self._rollout.mask_truncated else torch.ones_like(is_whole_S)
        found = advantages_of(rewards_S, groups_S, self._advantage, is_kept_S=is_kept_S)
        is_used_S = found.is_trained_S
        if self._rollout.drop_constant_groups:
            is_used_S = is_used_S & found.has_variance_G[groups_S]
        self._tell(scored, found, is_used_S)
        used = is_used_S.nonzero()[:, 0].tolist()
        costs = {place: [len(scored[place].prompt_ids) + len(scored[place].sample.ids)] for place in used}
        parts = divide(costs, num_processes=1, budget=self._config.microbatch_tokens)[0] if used else [()]
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
        for name in self._factors:
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
