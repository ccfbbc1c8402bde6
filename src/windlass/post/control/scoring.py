"""Scoring of answers: samples become samples with rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windlass.config.annotations import JsonValue
from windlass.core.errors import UsageError
from windlass.post.control.config import RewardsConfig
from windlass.post.rewards.models import RewardModel
from windlass.post.rewards.pool import PoolConfig, RewardPool, RewardRequest
from windlass.post.rewards.protocol import Answer, Score
from windlass.post.rewards.registry import find_verifier
from windlass.post.rewards.sandbox import require_sandbox
from windlass.post.rollout.types import Sample
from windlass.train.data.tokenizer import Tokenizer

__all__ = ["ENVIRONMENT", "AnswerScorer", "ScoredSample"]

ENVIRONMENT = "environment"
"""Name of the sum of an environment's rewards, beside the values of verifiers."""

_MODEL = "model"
"""Verifier that reads tokens and scores whole batches; the others read texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """A sample with its rewards.

    Attributes:
        prompt_ids: the prompt.
        text: of the answer; of an episode also the environment's messages, as lines that begin with `[environment]`.
        rewards: value by verifier, and the sum of the environment's rewards as `environment`; None where the answer
            could not be scored.
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
        factors: factor of each verifier's value in the reward, and that of an environment's rewards.
        decode: returns the text of token ids.
        model: scores the tokens of answers as verifier `model`; closed by `close`.
    """

    def __init__(
        self,
        pool: RewardPool,
        factors: Mapping[str, float],
        decode: Callable[[Sequence[int]], str],
        model: RewardModel | None = None,
    ) -> None:
        self.factors = dict(factors)
        self._pool, self._decode, self._model = pool, decode, model

    @classmethod
    def of(cls, config: RewardsConfig | None, tokenizer: Tokenizer, *, has_environments: bool = False) -> AnswerScorer:
        """Return the scorer that settings describe; without settings, one that only decodes.

        Raises:
            NotFoundError, UsageError: a verifier is unknown, or its settings do not fit.
            PreconditionError: a verifier needs a sandbox that this machine cannot give, and the settings are strict.
        """
        if config is None:
            return cls(RewardPool([]), {}, tokenizer.decode)
        model = next(
            (_model(each.settings, tokenizer, config) for each in config.verifiers if each.name == _MODEL), None
        )
        verifiers = [find_verifier(each.name, each.settings) for each in config.verifiers if each.name != _MODEL]
        if config.sandbox == "strict" and any(each.isolation == "sandbox" for each in verifiers):
            require_sandbox()
        pool = RewardPool(
            [each.weakened() if config.sandbox == "weak" else each for each in verifiers],
            PoolConfig(num_workers=config.num_workers, deadline_s=config.deadline, on_error=config.on_error),
        )
        factors = {ENVIRONMENT: 1.0} if has_environments else {}
        factors |= {each.name: each.weight for each in config.verifiers}
        return cls(pool, factors, tokenizer.decode, model)

    def score(
        self, samples: Sequence[Sample], prompts: Sequence[tuple[int, ...]], truths: Sequence[object]
    ) -> list[ScoredSample]:
        """Return the samples with their rewards, in order; blocks until all are scored.

        Verifiers see the last turn of an episode, and none whose environment did not finish.

        Args:
            prompts: prompt of each sample.
            truths: ground truth of each sample; None where there is none.
        """
        texts = [self._text(sample) for sample in samples]
        names = [name for name in self.factors if name != ENVIRONMENT]
        asked = {prompt: self._decode(prompt) for prompt in set(prompts)} if names else {}
        requests = [
            RewardRequest(verifier=name, answer=answer, ground_truth=truth)
            for sample, truth, prompt in zip(samples, truths, prompts, strict=True)
            if names and not _has_failed(sample)
            for answer in [self._answer(sample, asked[prompt])]
            for name in names
            if name != _MODEL
        ]
        by_model = self._by_model(samples, prompts)
        scores = iter(self._pool.score(requests))
        found: list[ScoredSample] = []
        for sample, text, prompt_ids in zip(samples, texts, prompts, strict=True):
            values: dict[str, float | None] = {}
            if ENVIRONMENT in self.factors:
                values[ENVIRONMENT] = 0.0 if sample.episode is None else sample.episode.reward
            for name in names:
                if name == _MODEL:
                    own = next(by_model).value
                    values[name] = None if _has_failed(sample) else own
                else:
                    values[name] = None if _has_failed(sample) else next(scores).value
            parts = [float("nan") if value is None else self.factors[name] * value for name, value in values.items()]
            found.append(
                ScoredSample(sample=sample, prompt_ids=prompt_ids, text=text, rewards=values, reward=float(sum(parts)))
            )
        return found

    def _by_model(self, samples: Sequence[Sample], prompts: Sequence[tuple[int, ...]]) -> Iterator[Score]:
        """Yield the reward model's scores, with what the settings say of those that failed."""
        if self._model is None:
            return
        sequences = [(prompt, sample.ids) for prompt, sample in zip(prompts, samples, strict=True)]
        found = self._model.score(sequences)
        on_error = self._pool.config.on_error
        if on_error == "retry" and any(score.value is None for score in found):
            found = self._model.score(sequences)
        yield from (replace(each, value=0.0) if on_error == "zero" and each.value is None else each for each in found)

    def metrics(self) -> dict[str, float]:
        """Return what verifiers used since the start, such as requests and tokens of a judge."""
        return {f"rollout/{name}": amount for name, amount in self._pool.costs.items()}

    def close(self) -> None:
        """End the processes of verifiers; idempotent. The next call starts them again."""
        self._pool.close()
        if self._model is not None:
            self._model.close()

    def _text(self, sample: Sample) -> str:
        """Return what the policy and its environment wrote; an environment's messages are lines that begin with a mark."""
        if sample.episode is None:
            return self._decode(sample.ids)
        marks = {"policy": "", "tool": "[environment] "}
        parts = [
            marks[span.origin] + self._decode(sample.ids[span.start : span.stop])
            for span in sample.spans
            if span.origin in marks
        ]
        return "\n".join(parts)

    def _answer(self, sample: Sample, prompt: str) -> Answer:
        return Answer(
            text=self._decode(sample.last_turn()),
            num_tokens=sample.num_policy_tokens,
            is_complete=sample.finish == "stop",
            prompt=prompt,
        )


def _has_failed(sample: Sample) -> bool:
    return sample.episode is not None and bool(sample.episode.error)


def _model(settings: Mapping[str, JsonValue], tokenizer: Tokenizer, config: RewardsConfig) -> RewardModel:
    """Return the reward model of settings.

    Raises:
        UsageError: it has no such setting, or lacks its checkpoint.
        SpecError: the checkpoint is not a reward model, or its tokenizer differs from the policy's.
    """
    values: dict[str, Any] = {name: value for name, value in settings.items() if name != "from"}
    unknown = sorted(values.keys() - {"device", "pooling"})
    if unknown or "from" not in settings:
        what = f"it has no `{unknown[0]}`" if unknown else "`from` is missing"
        hint = "write `{from: CHECKPOINT}`, and `device` or `pooling` if needed"
        raise UsageError(f"invalid settings of verifier `model`: {what}", hint=hint, code="invalid-value")
    return RewardModel(str(settings["from"]), tokenizer, deadline_s=config.deadline, **values)
