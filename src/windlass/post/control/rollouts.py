"""Rollouts as batches: prompts are answered by the current weights, scored, and become rows with advantages.

This is the synchronous loop: each batch is sampled by the policy that learns from it, in the learner's process. Batches
are stored before they are learned from, so a resumed run learns from the same ones without generating them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from windlass.post.control.assembly import BatchAssembly, OpenBatch
from windlass.post.control.config import RolloutConfig
from windlass.post.control.records import PlanGroup, ReserveBatch
from windlass.post.control.sample_log import SampleLog
from windlass.post.control.sample_reader import SampleReplay
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.data.config import MixtureConfig
from windlass.post.data.position import PreparedPosition
from windlass.post.data.prepared import PreparedData
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling

__all__ = ["RolloutLoader"]

_POLL_S = 1.0


class RolloutLoader(PreparedPosition):
    """Endless batches of answers, in an order of prompts that is a pure function of seed, epoch and index.

    Args:
        engine: generates answers; gets the policy's weights before each batch. None with a replay.
        weights: returns the policy's current weights by name.
        scorer: scores answers; closed by `close`.
        open_log: opens the log of samples at a step, closed by `close`; None: samples are not stored.
        replay: stored batches to learn from; nothing is generated then.
        assembly: makes batches of scored answers.
        stop_ids: tokens that end an answer.
        seed: seed of sampling, and of the order if the settings have none.
    """

    def __init__(
        self,
        data: PreparedData,
        config: MixtureConfig,
        rollout: RolloutConfig,
        *,
        engine: RolloutEngine | None,
        weights: Callable[[], Mapping[str, Tensor]],
        scorer: AnswerScorer,
        assembly: BatchAssembly,
        stop_ids: tuple[int, ...],
        seed: int,
        open_log: Callable[[int], SampleLog] | None = None,
        replay: SampleReplay | None = None,
    ) -> None:
        settings = ("group_size", "minibatches", "epochs")
        fingerprint = {f"rollout.{name}": str(getattr(rollout, name)) for name in settings}
        super().__init__(data, config, seed=seed, fingerprint=fingerprint)
        self._open = OpenBatch(rollout.epochs)
        self._rollout, self._engine, self._weights = rollout, engine, weights
        self._scorer, self._assembly = scorer, assembly
        self._open_log, self._replay = open_log, replay
        self._log: SampleLog | None = None
        self._is_loaded = False
        self._sampling = Sampling(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_k=rollout.top_k,
            top_p=rollout.top_p,
            stop_ids=stop_ids,
            stop_texts=rollout.stop_texts,
            seed=seed,
        )
        self._truths = data.ground_truths()

    def __iter__(self) -> Iterator[TokenBatch]:
        """Yield the batch of each optimiser step; blocks while answers are generated and scored.

        Endless, except with a replay.
        """
        while True:
            if not self._open.num_left:
                answers = self._answers()
                if answers is None:
                    return
                batches = self._assembly.batches(answers)
                if self._rollout.only:
                    batches = tuple(self._assembly.nothing() for _ in batches)
                self._open.fill(batches, self._assembly.metrics)
            yield self._open.take()

    @property
    def batches_per_epoch(self) -> int:
        """Optimiser steps of a pass over the prompts."""
        return super().batches_per_epoch * self._rollout.steps_per_batch

    @property
    def batches_per_pass(self) -> float:
        """Optimiser steps of a pass, including the fraction of a batch at its end."""
        return super().batches_per_pass * self._rollout.steps_per_batch

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the optimiser steps from a position until `epochs` passes are complete."""
        steps = self._rollout.steps_per_batch
        left = steps - int(state.get("steps_taken", steps))
        return super().batches_until(epochs, state) * steps + left

    def state_dict(self) -> Mapping[str, int | str]:
        """Return the next batch's position, and the steps that are left of the current one."""
        return {**super().state_dict(), "sampling_seed": self._sampling.seed, **self._open.state_dict()}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position; answers are sampled with the seed of the run that it is of."""
        super().load_state_dict(state)
        self._sampling = replace(self._sampling, seed=int(state["sampling_seed"]))
        self._open.load_state_dict(state)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the means over the last batch."""
        return self._open.metrics

    def commit(self, step: int, *, oldest_step: int) -> None:
        """Record in the log that a checkpoint exists, and delete samples that need not be kept.

        Args:
            oldest_step: step of the oldest checkpoint.
        """
        if self._log is not None:
            keep = self._rollout.keep_samples
            self._log.commit(step, oldest_step=None if keep is None else min(oldest_step, step - keep))

    def close(self) -> None:
        """End the processes of verifiers and close the log; idempotent. The next batch starts and opens them again."""
        self._scorer.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _answers(self) -> list[ScoredSample] | None:
        """Return the answers to the next prompts, stored or new; moves the position behind them.

        None: the replay has no further batch.
        """
        batch = self.position // self._config.batch_rows
        if self._replay is not None:
            found = self._replay.batch(batch)
        else:
            step = batch * self._rollout.steps_per_batch
            found = self._stored(step)
            found = self._sampled(step) if found is None else found
        self.position += self._config.batch_rows
        return found

    def _stored(self, step: int) -> list[ScoredSample] | None:
        if self._open_log is None:
            return None
        if self._log is None:
            self._log = self._open_log(step)
        return self._log.stored(step)

    def _sampled(self, step: int) -> list[ScoredSample]:
        """Return answers by the current weights, scored; they are stored and reserved for the step."""
        assert self._engine is not None
        version = 0 if self._rollout.only else step
        if not (self._rollout.only and self._is_loaded):
            self._engine.load(self._weights(), version=version)
            self._is_loaded = True
        rows = dict(enumerate(self.rows_at(self.position), start=self.position))
        samples = self._generated(self._engine, rows)
        prompts = [self._prompt(rows[sample.id.group]) for sample in samples]
        truths = [self._truths[rows[sample.id.group]] if self._truths else None for sample in samples]
        scored = self._scorer.score(samples, prompts, truths)
        if self._log is not None:
            plans = [PlanGroup(group=group, row=row, oldest_version=version) for group, row in rows.items()]
            self._log.append(*plans, *scored, ReserveBatch(step=step, groups=tuple(rows)))
            self._log.flush()
        return scored

    def _generated(self, engine: RolloutEngine, rows: Mapping[int, int]) -> list[Sample]:
        """Return all samples of the groups, in the order of group and member."""
        work = [
            SampleRequest(
                id=SampleId(group=group, member=member), prompt_ids=self._prompt(row), sampling=self._sampling
            )
            for group, row in rows.items()
            for member in range(self._rollout.group_size)
        ]
        done: list[Sample] = []
        submitted = 0
        while len(done) < len(work):
            submitted += engine.submit(work[submitted:]) if submitted < len(work) else 0
            done += engine.poll(_POLL_S)
        return sorted(done, key=lambda sample: sample.id)

    def _prompt(self, row: int) -> tuple[int, ...]:
        ids, _ = self._data.sequence(self._data.sequences_of(row)[0])
        return tuple(ids.tolist())
