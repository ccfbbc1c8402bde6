"""Scoring of answers: samples become samples with rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windlass.post.control.config import RewardsConfig
from windlass.post.rewards.pool import PoolConfig, RewardPool, RewardRequest
from windlass.post.rewards.protocol import Answer
from windlass.post.rewards.registry import find_verifier
from windlass.post.rollout.types import Sample

__all__ = ["AnswerScorer", "ScoredSample"]


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


class AnswerScorer:
    """Scores samples with all verifiers of a recipe.

    Args:
        pool: scores answers; closed by `close`.
        factors: factor of each verifier's value in the reward.
        decode: returns the text of token ids.
    """

    def __init__(self, pool: RewardPool, factors: Mapping[str, float], decode: Callable[[Sequence[int]], str]) -> None:
        self.factors = dict(factors)
        self._pool, self._decode = pool, decode

    @classmethod
    def of(cls, config: RewardsConfig | None, decode: Callable[[Sequence[int]], str]) -> AnswerScorer:
        """Return the scorer that settings describe; without settings, one that only decodes.

        Raises:
            NotFoundError, UsageError: a verifier is unknown, or its settings do not fit.
        """
        if config is None:
            return cls(RewardPool([]), {}, decode)
        pool = RewardPool(
            [find_verifier(each.name, each.settings) for each in config.verifiers],
            PoolConfig(num_workers=config.num_workers, deadline_s=config.deadline, on_error=config.on_error),
        )
        return cls(pool, {each.name: each.weight for each in config.verifiers}, decode)

    def score(
        self, samples: Sequence[Sample], prompts: Sequence[tuple[int, ...]], truths: Sequence[object]
    ) -> list[ScoredSample]:
        """Return the samples with their rewards, in order; blocks until all are scored.

        Args:
            prompts: prompt of each sample.
            truths: ground truth of each sample; None where there is none.
        """
        texts = [self._decode(sample.ids) for sample in samples]
        requests = [
            RewardRequest(
                verifier=name,
                answer=Answer(text=text, num_tokens=len(sample.ids), is_complete=sample.finish == "stop"),
                ground_truth=truth,
            )
            for sample, text, truth in zip(samples, texts, truths, strict=True)
            for name in self.factors
        ]
        scores = iter(self._pool.score(requests))
        found: list[ScoredSample] = []
        for sample, text, prompt_ids in zip(samples, texts, prompts, strict=True):
            values = {name: next(scores).value for name in self.factors}
            parts = [float("nan") if value is None else self.factors[name] * value for name, value in values.items()]
            found.append(
                ScoredSample(sample=sample, prompt_ids=prompt_ids, text=text, rewards=values, reward=float(sum(parts)))
            )
        return found

    def close(self) -> None:
        """End the processes of verifiers; idempotent. The next call starts them again."""
        self._pool.close()
