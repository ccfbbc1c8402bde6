"""Samples of the first process's workers, for all processes of the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.post.control.asynchronous import AsyncRollouts
from windlass.post.control.prompts import Visit
from windlass.post.control.scoring import ScoredSample
from windlass.train.data.protocol import NotReady
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.weights.store import Probe

__all__ = ["SharedRollouts"]


class SharedRollouts:
    """The first process's samples, for all processes of the learner.

    Args:
        rollouts: of the first process; None on others.
        weights: returns the policy's current weights by name, whole. Collective.
        probe: returns what workers compare their log-probabilities with. Collective.
    """

    def __init__(
        self,
        rollouts: AsyncRollouts | None,
        weights: Callable[[], Mapping[str, Tensor]],
        probe: Callable[[], Probe],
        world: World,
    ) -> None:
        self._rollouts, self._weights, self._probe, self._world = rollouts, weights, probe, world

    def begin(self, step: int) -> None:
        """Publish the weights. Collective."""
        weights, probe = self._weights(), self._probe()
        if self._rollouts is not None:
            self._rollouts.advance(weights, probe, step)

    def batch(self, step: int) -> list[ScoredSample] | NotReady | None:
        """Return the samples of a step; None if no prompt is left. Collective."""
        return self._world.from_main(NotReady.BATCH if self._rollouts is None else self._rollouts.batch(step))

    @property
    def has_log(self) -> bool:
        """Return whether batches are stored, or this is another process than the one that would do so."""
        return self._rollouts is None or self._rollouts.log is not None

    def stored(self, step: int) -> list[ScoredSample] | None:
        """Return the samples of a step's batch, if they are stored. Collective."""
        log = None if self._rollouts is None else self._rollouts.log
        return self._world.from_main(None if log is None else log.stored(step))

    def dropped(self) -> Sequence[Visit]:
        """Return the visits of groups that were dropped before the last batch. Collective."""
        return self._world.from_main(() if self._rollouts is None else self._rollouts.dropped())

    def waits_for(self) -> str:
        """Return what the first process waits for; nothing on others, which wait for it."""
        return "" if self._rollouts is None else self._rollouts.waits_for()

    def commit(self, step: int, *, oldest_step: int | None) -> None:
        """Note that a checkpoint is durable."""
        if self._rollouts is not None:
            self._rollouts.commit(step, oldest_step=oldest_step)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the first process; other processes record them too, as their mean is reported."""
        return self._world.from_main({} if self._rollouts is None else self._rollouts.metrics())

    def close(self) -> None:
        """End threads and workers."""
        if self._rollouts is not None:
            self._rollouts.close()
