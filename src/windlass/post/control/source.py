"""Protocols between the loader of rollouts and what provides its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windlass.post.control.prompts import PromptPools, Visit
from windlass.post.control.scoring import ScoredSample
from windlass.post.rollout.types import SampleId, SampleRequest
from windlass.train.data.protocol import NotReady

__all__ = ["GroupPrompts", "SampleSource"]


class GroupPrompts(Protocol):
    """Prompts of groups; all but `take` and `pools` are pure functions of a group's number.

    Attributes:
        position: number of the group that the next batch begins with, if batches have the next groups.
        pools: choice of prompts, after the visits of all batches that were taken.
    """

    position: int
    pools: PromptPools

    def take(self, position: int, count: int) -> list[int]:
        """Return the numbers of the next groups from a position on, without those that are passed over."""

    def visits(self, answers: Sequence[ScoredSample]) -> list[Visit]:
        """Return the visits of prompts by the answers to them, which are in the order of groups."""

    def row(self, group: int) -> int:
        """Return the group's row in the prepared data."""

    def request(self, sample: SampleId, oldest_version: int) -> SampleRequest:
        """Return the request for a sample, which weights of this version or newer ones may begin."""

    def truth(self, group: int) -> object:
        """Return the ground truth of the group's prompt; None if there is none."""


class SampleSource(Protocol):
    """Scored samples of whole groups, a batch at a time."""

    def begin(self, step: int) -> None:
        """Note that the learner has finished this number of steps and that its weights are the ones to sample with.

        Called once before the batch of this step is requested. Collective: it may read the learner's weights.
        """

    def batch(self, step: int) -> list[ScoredSample] | NotReady | None:
        """Return the samples of a step's batch in the order of group and member; waits about a second for them.

        The same samples whenever the batch of a step is requested again, also by a resumed run. None: there are no
        further batches.
        """

    @property
    def has_log(self) -> bool:
        """Return whether batches are stored; true for other processes than the learner's first one, which stores them."""

    def stored(self, step: int) -> list[ScoredSample] | None:
        """Return the samples of a step's batch, that a resumed run is within; None if they are not stored. Collective."""

    def dropped(self) -> Sequence[Visit]:
        """Return the visits of prompts whose groups were dropped before the last batch was complete."""

    def waits_for(self) -> str:
        """Return what a late batch waits for, such as names of workers; empty if that is this process itself."""

    def commit(self, step: int, *, oldest_step: int | None) -> None:
        """Note that a checkpoint after this number of steps is durable.

        Args:
            oldest_step: samples that only earlier steps need may be deleted; None: all are kept.
        """

    def metrics(self) -> dict[str, float]:
        """Return what the source itself measures, for the step that learns from the last batch."""

    def close(self) -> None:
        """End processes and close files; idempotent."""
