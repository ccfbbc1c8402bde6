"""Bound of the staleness of every trained token: which groups may be started, and which a batch must take.

The lag of a token is the number of optimiser steps between its weights, or the oldest ones behind a cache entry that it
read, and the step that learns from it. A batch is used for m steps.

The bound holds by construction. A group that is started with weights of version v is *due* in batch
(v + bound - (m - 1)) // m: reserved no later than there, no token of it exceeds the bound. At any time, for every later
batch T, the started groups that are due up to T fit into the batches up to T; a group is started, and a batch is
reserved, only if that stays true. So the learner waits for late samples, and nothing finished is ever discarded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["ControllerConfig", "DueBatches"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Sizes and limits.

    Attributes:
        bound: most optimiser steps between any trained token's weights and its use, the steps of its own batch included.
        ahead: batches that are generated ahead of the one that the learner asks for next.
        steps_per_batch: optimiser steps that use a batch.
        max_replaced: dropped groups that are replaced, per batch; after that the batch is smaller, by all but one group.
        max_attempts: attempts at a sample, all of which died with their worker, before its group is dropped.

    Raises:
        ValueError: a value is out of range, or the bound leaves no room for `ahead` or `steps_per_batch`.
    """

    groups_per_batch: int
    group_size: int
    bound: int = 0
    ahead: int = 0
    steps_per_batch: int = 1
    max_replaced: int = 64
    max_attempts: int = 32

    def __post_init__(self) -> None:
        if min(self.groups_per_batch, self.group_size, self.steps_per_batch) < 1:
            raise ValueError("groups_per_batch, group_size and steps_per_batch must be at least 1")
        if not 1 <= self.max_attempts <= 255:
            raise ValueError(f"max_attempts is {self.max_attempts}; use 1 to 255")
        if min(self.ahead, self.max_replaced) < 0 or self.bound < self.steps_per_batch - 1:
            raise ValueError("ahead and max_replaced must not be negative, nor bound below steps_per_batch - 1")
        if self.ahead > self.slack:
            raise ValueError(f"ahead is {self.ahead}, but the bound leaves room for {self.slack}")

    @property
    def slack(self) -> int:
        """Return how many batches a group can wait if it is started with the newest weights; 0: synchronous."""
        return (self.bound - self.steps_per_batch + 1) // self.steps_per_batch


class DueBatches:
    """Open groups by the batch in which they are due.

    Attributes:
        next_batch: number of the next batch to be reserved.
    """

    def __init__(self, config: ControllerConfig) -> None:
        self.next_batch = 0
        self._config = config
        self._counts: Counter[int] = Counter()

    def batch(self, version: int) -> int:
        """Return the last batch in which tokens of this version do not exceed the bound."""
        return (version + self._config.bound - self._config.steps_per_batch + 1) // self._config.steps_per_batch

    def add(self, due: int) -> None:
        """Count a group that is started."""
        self._counts[due] += 1

    def remove(self, due: int) -> None:
        """Forget a group that is reserved or dropped."""
        self._counts[due] -= 1
        if not self._counts[due]:
            del self._counts[due]

    def has_room(self, version: int) -> bool:
        """Return whether one more group of this version meets its due batch.

        Whatever the open ones need, of which there are at most `ahead` + 1 batches.
        """
        size, due = self._config.groups_per_batch, self.batch(version)
        if due < self.next_batch:
            return False
        num_due = sum(count for batch, count in self._counts.items() if batch < due)
        for batch in range(due, self.next_batch + self._config.ahead):  # later ones have room for all that may be open
            num_due += self._counts.get(batch, 0)
            if num_due >= (batch - self.next_batch + 1) * size:
                return False
        return True

    def needed(self) -> dict[int, int]:
        """Return how many groups due up to a batch the next one must take, by batch."""
        needed, num_due = {}, 0
        for due in sorted(self._counts):
            num_due += self._counts[due]
            needed[due] = num_due - (due - self.next_batch) * self._config.groups_per_batch
        return needed
