"""Rollouts between two steps: each batch is sampled by the policy that learns from it, in the learner's processes.

Every process generates and scores a share of the groups. A batch is stored before it is learned from, so a resumed run
learns from the same samples without generating them again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from windlass.post.control.prompts import Visit
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.source import GroupPrompts
from windlass.post.rollout.engine import Lendable, LendingEngine, RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest
from windlass.post.samples.log import SampleLog
from windlass.post.samples.records import PlanGroup, ReserveBatch
from windlass.train.data.protocol import NotReady
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SyncRollouts"]

_POLL_S = 1.0


class SyncRollouts:
    """Samples by an engine in each process of the learner.

    Args:
        groups_per_batch, group_size: groups of a batch, and samples of a group.
        weights: returns the policy's current weights by name, whole. Collective.
        log: of the first process; None: samples are not stored.
        num_used: returns how many groups would be learned; further groups take the place of the others.
        refills: most rounds of further groups.
        release: frees what the engine holds besides its weights, at `close`.
        is_frozen: whether the weights never change, so that they are loaded once, as version 0.
        check: raises if the weights of a server are not the policy's; called after a load. The engine is closed too then.
        lends: what the engine frees while the learner trains, as a `LendingEngine`; None: nothing.
    """

    def __init__(
        self,
        prompts: GroupPrompts,
        *,
        groups_per_batch: int,
        group_size: int,
        engine: RolloutEngine,
        weights: Callable[[], Mapping[str, Tensor]],
        scorer: AnswerScorer,
        world: World,
        log: SampleLog | None = None,
        num_used: Callable[[Sequence[ScoredSample]], int] | None = None,
        refills: int = 0,
        is_frozen: bool = False,
        release: Callable[[], object] = lambda: None,
        check: Callable[[int], None] | None = None,
        lends: Lendable | None = None,
    ) -> None:
        self._prompts, self._world, self._log = prompts, world, log
        self._groups_per_batch, self._group_size = groups_per_batch, group_size
        self._num_used, self._refills = num_used, refills
        self._groups: list[int] = []
        self._kept: list[ScoredSample] = []
        self._num_rounds = 0
        self._engine, self._weights, self._scorer = engine, weights, scorer
        self._release = release
        self._is_frozen, self._is_loaded = is_frozen, False
        self._check = check
        self._lends = lends
        self._lend()
        self._version = 0
        self._stored: list[ScoredSample] | None = None
        self._waiting: list[SampleRequest] = []
        self._num_open = 0
        self._done: list[Sample] = []

    def begin(self, step: int) -> None:
        """Load the weights and begin the groups of a step, unless they are stored."""
        self._stored = self.stored(step)
        if self._stored is not None:
            return
        if self._lends is not None:
            cast(LendingEngine, self._engine).take_back()
        if not (self._is_frozen and self._is_loaded):
            self._version = 0 if self._is_frozen else step
            if self._engine.facts.has_weight_update:
                self._engine.load(self._weights(), version=self._version)
            if self._check is not None:
                self._check(self._version)
            self._is_loaded = True
        self._groups, self._kept, self._num_rounds = [], [], 0
        self._sample(self._prompts.take(self._prompts.position, self._groups_per_batch))

    def _sample(self, groups: list[int]) -> None:
        """Begin this process's share of further groups."""
        self._groups += groups
        own, members = groups[self._world.rank :: self._world.size], range(self._group_size)
        self._waiting = [
            self._prompts.request(SampleId(group=group, member=each), 0) for group in own for each in members
        ]
        self._num_open, self._done = len(self._waiting), []

    def batch(self, step: int) -> list[ScoredSample] | NotReady | None:
        """Return the samples of a step, once all processes have theirs; None if no prompt is left. Collective."""
        if self._stored is not None:
            return self._stored
        deadline_s = time.monotonic() + _POLL_S
        while len(self._done) < self._num_open and (left_s := deadline_s - time.monotonic()) > 0:
            self._waiting = self._waiting[self._engine.submit(self._waiting) :] if self._waiting else []
            self._done += self._engine.poll(left_s)
        is_late = len(self._done) < self._num_open
        if self._world.sum_on_host([float(is_late)])[0]:
            return NotReady.BATCH
        scored = self._scored(sorted(self._done, key=lambda sample: sample.id))
        whole = sorted(
            (each for share in self._world.from_all(scored) for each in share), key=lambda each: each.sample.id
        )
        self._kept = sorted([*self._kept, *whole], key=lambda each: each.sample.id)
        if further := self._further():
            self._num_rounds += 1
            self._sample(further)
            return NotReady.BATCH
        if not self._kept:
            return None
        self._lend()
        self._store(step, self._kept)
        self._stored = self._kept
        return self._kept

    def _lend(self) -> None:
        if self._lends is not None:
            cast(LendingEngine, self._engine).lend(self._lends)

    def _further(self) -> list[int]:
        """Return the groups that take the place of those that would not be learned."""
        if self._num_used is None or self._num_rounds >= self._refills or not self._kept:
            return []
        num_missing = self._groups_per_batch - self._num_used(self._kept)
        return self._prompts.take(self._groups[-1] + 1, num_missing)

    @property
    def has_log(self) -> bool:
        """Return whether batches are stored, or this is another process than the one that would do so."""
        return self._log is not None or not self._world.is_main

    def stored(self, step: int) -> list[ScoredSample] | None:
        """Return the samples of a step's batch, if they are stored. Collective."""
        return self._world.from_main(self._log.stored(step) if self._log is not None else None)

    def dropped(self) -> Sequence[Visit]:
        """Return nothing: a batch has all groups that were generated for it."""
        return ()

    def waits_for(self) -> str:
        """Return nothing: this process generates."""
        return ""

    def commit(self, step: int, *, oldest_step: int | None) -> None:
        """Record in the log that a checkpoint exists."""
        if self._log is not None:
            self._log.commit(step, oldest_step=oldest_step)

    def metrics(self) -> dict[str, float]:
        """Return what verifiers used; samples are of the step's own weights, and no process waits for another."""
        return self._scorer.metrics()

    def close(self) -> None:
        """End the processes of verifiers and environments, and close the log."""
        if self._check is not None:
            self._engine.close()
        self._release()
        self._scorer.close()
        if self._log is not None:
            self._log.close()

    def _scored(self, samples: list[Sample]) -> list[ScoredSample]:
        prompts = [self._prompts.request(sample.id, 0).prompt_ids for sample in samples]
        return self._scorer.score(samples, prompts, [self._prompts.truth(sample.id.group) for sample in samples])

    def _store(self, step: int, scored: list[ScoredSample]) -> None:
        if self._log is not None:
            plans = [
                PlanGroup(group=group, row=self._prompts.row(group), oldest_version=self._version)
                for group in self._groups
            ]
            self._log.append(*plans, *scored, ReserveBatch(step=step, groups=tuple(self._groups)))
            self._log.flush()
