"""Trials in population based training, ranked by their newest scores."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass

from windlass.tune.trial import SavedState, Trial

__all__ = ["Member", "Population"]


@dataclass(slots=True)
class Member:
    """Trial that has not ended, as a member of the population.

    Attributes:
        score: of the last time it was considered; more is better; None before.
        perturbed_at: the time when it was last considered.
        trained_to: the time that counts for its turn.
        saved: the checkpoint that others may take over; only of the best.
    """

    trial: Trial
    score: float | None = None
    perturbed_at: float = 0
    trained_to: float = 0
    saved: SavedState | None = None


class Population:
    """Live trials by id.

    The cost of `quantiles` grows with the number of trials in them.
    """

    def __init__(self, quantile_fraction: float) -> None:
        self.members: dict[str, Member] = {}
        self._fraction = quantile_fraction
        self._ranking: list[tuple[float, int, str]] = []  # worst first; of those with a score that is a number
        self._left: dict[str, float] = {}

    def add(self, trial: Trial) -> Member:
        """Add a trial that starts, or starts again after an error."""
        self.leave(trial)
        self._left.pop(trial.id, None)
        member = self.members[trial.id] = Member(trial)
        return member

    def leave(self, trial: Trial) -> None:
        """Remove a trial that has ended or will be retried."""
        member = self.members.pop(trial.id, None)
        if member is not None:
            self._unrank(member)
            self._left[trial.id] = member.trained_to

    def rank(self, member: Member, score: float) -> None:
        """Set the newest score of a member."""
        self._unrank(member)
        member.score = score
        if not math.isnan(score):
            insort(self._ranking, (score, member.trial.number, member.trial.id))

    def quantiles(self) -> tuple[list[Member], list[Member]]:
        """Return the worst and the best members, each worst first; both are empty if fewer than two have a score."""
        num = len(self._ranking)
        if num <= 1:
            return [], []
        size = min(math.ceil(num * self._fraction), num // 2)
        return self._members_at(0, size), self._members_at(num - size, num)

    @property
    def num_ranked(self) -> int:
        return len(self._ranking)

    @property
    def furthest(self) -> float:
        """Return the largest `trained_to` among all trials, including finished ones."""
        return max([*(member.trained_to for member in self.members.values()), *self._left.values()], default=0)

    def _members_at(self, first: int, last: int) -> list[Member]:
        return [self.members[name] for _, _, name in self._ranking[first:last]]

    def _unrank(self, member: Member) -> None:
        if member.score is not None and not math.isnan(member.score):
            del self._ranking[bisect_left(self._ranking, (member.score, member.trial.number, member.trial.id))]
