"""Interface of verifiers. Importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

__all__ = ["Answer", "Isolation", "Score", "Verifier"]

Isolation = Literal["inline", "process", "sandbox"]
"""Place where a verifier runs: in the caller's process, in a process of the pool, or there with its program in a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as verifiers see it.

    Attributes:
        text: decoded, without special tokens.
        num_tokens: generated tokens, the stop token included.
        is_complete: whether it ended by itself, not by the limit of tokens.
        prompt: text of the prompt, without special tokens.
    """

    text: str
    num_tokens: int
    is_complete: bool
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Result of a verifier.

    Attributes:
        value: reward; None if the answer could not be scored, which is not a reward of 0.
        error: why it could not be scored.
        kind: kind of the error, by which errors are counted: `exception`, `timeout`, `died`, `not-finite` or `pool`;
            empty without an error.
        seconds: how long the verifier took, if the pool ran it.
        cost: what it used, such as tokens of a judge, by name; also without a value.
    """

    value: float | None
    error: str = ""
    kind: str = ""
    seconds: float = 0.0
    cost: Mapping[str, float] = field(default_factory=dict)


class Verifier(Protocol):
    """Scores answers; pure and deterministic."""

    @property
    def name(self) -> str:
        """Name in recipes and metrics."""

    @property
    def version(self) -> str:
        """Version, recorded in the run; a change of what it computes changes it."""

    @property
    def isolation(self) -> Isolation:
        """Place where it runs."""

    def score(self, answer: Answer, ground_truth: object) -> Score:
        """Score an answer. An exception counts as an answer that could not be scored."""
