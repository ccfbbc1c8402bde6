"""One bracket of HyperBand: trials that run to a milestone together, are halved there, and go on to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windlass.tune.errors import BadValueError
from windlass.tune.trial import Trial

__all__ = ["Bracket", "BracketTrial"]


@dataclass(slots=True)
class BracketTrial:
    """A trial of a bracket with its newest result.

    Attributes:
        time: 0 before the first result.
        score: more is better; None where the result has no metric.
    """

    trial: Trial
    time: float = 0
    score: float | None = None


class Bracket:
    """Which trials a bracket holds and how far they are; who is stopped at a milestone is decided here.

    Attributes:
        size: how many trials it takes, and keeps after the next halving.
        milestone: the time at which a trial waits for the others.
        halves: halvings that are left.
        live: trials that are not over, in the order in which they were added.
        behind: ids of those that have not come to the milestone.
    """

    def __init__(self, *, size: int, milestone: int, max_t: float, eta: float, halves: int, stops_last: bool) -> None:
        self.size, self.milestone, self.halves = size, milestone, halves
        self.live: dict[str, BracketTrial] = {}
        self._num_awaited = size
        self._num_halves = halves
        self.behind: set[str] = set()
        self._max_t, self._eta, self._stops_last = max_t, eta, stops_last
        self._total_work = _total_work(size, milestone, max_t, eta, halves)
        self._progress: float = 0

    @property
    def is_filled(self) -> bool:
        return len(self.live) == self.size

    @property
    def has_had_all(self) -> bool:
        """Whether as many trials as it takes have entered, those that are over counted too."""
        return self._num_awaited <= 0

    @property
    def is_fresh(self) -> bool:
        """Whether it has not been halved."""
        return self.halves == self._num_halves

    @property
    def is_done(self) -> bool:
        """Whether all live trials have come to the milestone."""
        return not self.behind

    @property
    def is_finished(self) -> bool:
        """Whether they have, and it is the last one."""
        return self._stops_last and self.halves == 0 and self.is_done

    @property
    def is_free(self) -> bool:
        """Whether its last trials run on for as long as they like."""
        return not self._stops_last and self.halves == 0

    @property
    def completion(self) -> float:
        """Which share of its work is done; trials that died leave theirs undone."""
        return 1.0 if self.is_finished else min(self._progress / self._total_work, 1.0)

    def add(self, trial: Trial) -> None:
        """A trial enters; it has to come to the present milestone."""
        self.live[trial.id] = BracketTrial(trial)
        self._num_awaited -= 1
        self._place(trial.id)

    def report(self, trial: Trial, time: float, score: float | None) -> None:
        """The newest result of a live trial."""
        standing = self.live[trial.id]
        self._progress += time - standing.time
        standing.time, standing.score = time, score
        self._place(trial.id)

    def goes_on(self, trial: Trial) -> bool:
        """Whether a trial has not come to the milestone, or needs not care."""
        return self.is_free or self.live[trial.id].time < self.milestone

    def remove(self, trial: Trial) -> None:
        """A trial is over."""
        self.live.pop(trial.id, None)
        self.behind.discard(trial.id)

    def halve(self) -> tuple[list[Trial], list[Trial]]:
        """Set the next milestone; returns the trials that stay and those that do not, worst first.

        Raises:
            UsageError: the newest result of one of them has no metric.
        """
        if self.is_free:
            return [standing.trial for standing in self.live.values()], []
        self.halves -= 1
        self.size = math.ceil(self.size / self._eta)
        self.milestone = int(min(self.milestone * self._eta, self._max_t))
        for name in self.live:
            self._place(name)
        ranked = [standing.trial for standing in sorted(self.live.values(), key=_score_of)]
        return ranked[-self.size :], ranked[: -self.size]

    def _place(self, name: str) -> None:
        if self.live[name].time >= self.milestone:
            self.behind.discard(name)
        else:
            self.behind.add(name)


def _score_of(standing: BracketTrial) -> float:
    if standing.score is None:
        raise BadValueError(
            f"trial {standing.trial.id} has to be compared with others, and its newest result has no metric",
            hint="report the metric with every result, or at the milestones at least",
            code="result-lacks-attribute",
        )
    return standing.score


def _total_work(size: int, milestone: int, max_t: float, eta: float, halves: int) -> float:
    work, number, step = 0, float(size), float(milestone)
    for _ in range(halves + 1):
        work += int(number) * int(step)
        number = math.ceil(number / eta)
        step = int(min(step * eta, max_t - milestone))
    return work
