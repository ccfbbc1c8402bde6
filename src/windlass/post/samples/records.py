"""Records of a run's samples: what the sample log stores and what the controller rebuilds its state from.

A group is a prompt with its answers. `planned -> claimed -> scored -> reserved -> committed | dropped` are its states;
claims are not stored, because they end with the process that holds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from windlass.post.rollout.types import SampleId, TokenSpan

__all__ = ["CommitStep", "DropGroup", "PlanGroup", "Record", "ReserveBatch", "Scored", "oldest_version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """A group was started.

    Attributes:
        row: the prompt's row in the prepared data.
        oldest_version: no token of the group may read weights that are older; it determines when the group is due.
    """

    group: int
    row: int
    oldest_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A sample was finished and scored; the log stores it with its rewards.

    Attributes:
        oldest_version: oldest version that any of its tokens read, see `oldest_version`.
        length: number of its tokens.
    """

    id: SampleId
    oldest_version: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveBatch:
    """Groups became the batch of a step; durable before the step uses it.

    Attributes:
        step: optimiser steps finished before the batch; a multiple of the number of steps that a batch is used for.
        groups: in the order of the batch's rows.
        dropped: rows of prompts that were visited since the batch before and whose groups were dropped, with the rewards
            of their answers (None: could not be scored); recorded if prompts are chosen by their visits.
    """

    step: int
    groups: tuple[int, ...]
    dropped: tuple[tuple[int, tuple[float | None, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup:
    """A group will not be trained on.

    Attributes:
        length: number of tokens of its finished samples.
    """

    group: int
    reason: str
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStep:
    """A checkpoint of this step exists; no earlier batch is used again."""

    step: int


Record: TypeAlias = PlanGroup | Scored | ReserveBatch | DropGroup | CommitStep


def oldest_version(spans: Iterable[TokenSpan]) -> int:
    """Return the oldest version behind any token of the policy and what it read.

    Raises:
        ValueError: no span is the policy's.
    """
    written = ((span.version, span.oldest_read) for span in spans if span.version is not None)
    return min(version if read is None else min(version, read) for version, read in written)
