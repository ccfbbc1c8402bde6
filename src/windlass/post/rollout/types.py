"""Values that go into a rollout engine and come out of it; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from windlass.core.errors import UsageError

__all__ = [
    "Episode",
    "EpisodeTask",
    "Finish",
    "Origin",
    "Sample",
    "SampleId",
    "SampleRequest",
    "Sampling",
    "ScoreRequest",
    "TokenSpan",
    "TurnEnd",
]

Finish: TypeAlias = Literal["stop", "length", "cancelled"]
"""Why a sample ended: a stop id or text, its limit of new tokens, or `RolloutEngine.cancel`."""

Origin: TypeAlias = Literal["policy", "tool", "template"]
"""Who wrote a span: the policy, a tool's output, or the chat template between turns."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SampleId:
    """Identity of a sample; given out by the sample log, never derived from text.

    Attributes:
        group: number of the prompt's group in the run.
        member: number of the sample within its group.
        attempt: how often this sample was started before. Random numbers do not depend on it, so that a sample that
            is generated again with the same weights is the same sample.
    """

    group: int
    member: int
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings for choosing tokens and for stopping.

    Attributes:
        max_new_tokens: maximum number of new tokens, the stop id included.
        temperature: divides logits; 0: always the most likely token.
        top_k: sample from the k most likely tokens; ties with the k-th one are kept.
        top_p: sample from the most likely tokens with at least this total probability.
        stop_ids: a token that ends the sample and is its last one.
        stop_texts: a text that ends the sample; the token that completes it is the last one.
        seed: seed of the run; a token's random number depends on it, the group, the member and the position alone.

    Raises:
        UsageError: a value is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1")
        is_warm = math.isfinite(self.temperature) and self.temperature >= 0
        _require(is_warm, "temperature", self.temperature, "0 or more")
        _require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "at least 1")
        _require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require("" not in self.stop_texts, "stop_texts", list(self.stop_texts), "texts of at least one character")


def _require(is_valid: bool, name: str, value: object, range_text: str) -> None:
    if not is_valid:
        raise UsageError(f"sampling.{name} is {value}", hint=f"use {range_text}", code="invalid-value")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTask:
    """The work of an environment for a sample.

    Attributes:
        environment: name of the environment.
        row: what it gets to know: the columns of the prompt's row, JSON-safe, with the prompt as `messages`.
    """

    environment: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """A sample to generate, or to continue.

    Attributes:
        prompt_ids: the prompt; all members of a group must have the same one.
        oldest_version: the engine starts the sample only with weights of this version or a newer one.
        context_ids: for a sample that is continued after a turn of its environment: all that the engine reads instead
            of the prompt.
        position: number of tokens that a continued sample has already; random numbers go on from there.
        task: work of an environment, which an `EnvironmentEngine` hands to it; other engines ignore it.
    """

    id: SampleId
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    oldest_version: int = 0
    context_ids: tuple[int, ...] = ()
    position: int = 0
    task: EpisodeTask | None = None

    @property
    def read_ids(self) -> tuple[int, ...]:
        """Return the tokens that the engine continues."""
        return self.context_ids or self.prompt_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """Tokens [start, stop) of a sample that have one origin and one version.

    Attributes:
        version: version of the weights that chose the tokens; None for tokens that the policy did not write.
        oldest_read: oldest version behind a cached key or value that these tokens read; it is below `version` only
            after a load that kept the cache. Staleness is counted from it.
    """

    start: int
    stop: int
    version: int | None
    origin: Origin = "policy"
    oldest_read: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """End of a turn of the policy.

    Attributes:
        stop: index after its last token among the sample's tokens.
        reward: what the environment gave for it; None: nothing.
    """

    stop: int
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Result of an environment for a sample.

    Attributes:
        turns: turns of the policy; rewards of an episode without a turn are not possible.
        forks: indices among the sample's tokens at which another sequence begins, because the chat template renders
            the earlier turns differently now. The tokens from there to the next fork are a whole sequence with its
            prompt, and those before the first fork follow the sample's prompt. All sequences weigh as one sample.
        error: why the environment did not finish; such a sample has no reward.
    """

    environment: str
    turns: tuple[TurnEnd, ...] = ()
    forks: tuple[int, ...] = ()
    error: str = ""

    @property
    def reward(self) -> float | None:
        """Return the sum of the turns' rewards; None if the environment did not finish."""
        return None if self.error else sum(turn.reward or 0.0 for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A finished continuation of a prompt.

    Attributes:
        ids: the new tokens, without the prompt; with the stop id, if one ended it.
        logp: natural log-probability of each token under the distribution it was sampled from: after temperature,
            top-k and top-p. With temperature 0 that of the unchanged distribution.
        raw_logp: the same under the model's own distribution; None if the engine does not report it.
        spans: consecutive spans that cover all tokens.
        seconds: time by phase, such as `queued` and `generated`; unit: seconds.
        episode: what an environment made of it; None: no environment took part.
    """

    id: SampleId
    ids: tuple[int, ...]
    logp: tuple[float, ...]
    raw_logp: tuple[float, ...] | None
    spans: tuple[TokenSpan, ...]
    finish: Finish
    seconds: Mapping[str, float] = field(default_factory=dict)
    episode: Episode | None = None

    @property
    def num_policy_tokens(self) -> int:
        """Return the number of tokens that the policy wrote."""
        if self.episode is None:
            return len(self.ids)
        return sum(span.stop - span.start for span in self.spans if span.origin == "policy")

    def last_turn(self) -> tuple[int, ...]:
        """Return the tokens of the policy's last turn."""
        if self.episode is None:
            return self.ids
        spans = [span for span in self.spans if span.origin == "policy"]
        begin = self.episode.turns[-2].stop if len(self.episode.turns) > 1 else 0
        return tuple(token for span in spans if span.start >= begin for token in self.ids[span.start : span.stop])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Tokens whose log-probabilities under the model's own distribution are wanted.

    Attributes:
        ids: the whole sequence.
        start: index of the first token to score; at least 1, because nothing predicts the first one.
    """

    ids: tuple[int, ...]
    start: int = 1
