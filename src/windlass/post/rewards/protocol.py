"""Interface of verifiers. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Answer", "Score", "Verifier"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer as verifiers see it.

    Attributes:
        text: decoded, without special tokens.
        num_tokens: generated tokens, the stop token included.
        is_complete: whether it ended by itself, not by the limit of tokens.
    """

    text: str
    num_tokens: int
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Result of a verifier.

    Attributes:
        value: reward; None if the answer could not be scored, which is not a reward of 0.
        error: why it could not be scored.
    """

    value: float | None
    error: str = ""


class Verifier(Protocol):
    """Scores answers; pure and deterministic."""

    @property
    def name(self) -> str:
        """Name in recipes and metrics."""

    @property
    def version(self) -> str:
        """Version, recorded in the run; a change of what it computes changes it."""

    def score(self, answer: Answer, ground_truth: object) -> Score:
        """Score an answer. An exception counts as an answer that could not be scored."""
