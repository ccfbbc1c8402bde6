"""Rollouts as batches: prompts are answered, scored, and become rows with advantages.

The loader knows which prompts come when and where a run stands in a batch. A source provides the scored answers:
`SyncRollouts` samples with the current weights between two steps, `AsyncRollouts` beside them, `SampleReplay` reads stored ones.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from windlass.core.json_text import decode_json
from windlass.post.control.assembly import BatchAssembly, OpenBatch
from windlass.post.control.config import RolloutConfig
from windlass.post.control.prompts import RetiredPrompts
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.source import GroupPrompts, SampleSource
from windlass.post.data.config import MixtureConfig
from windlass.post.data.position import PreparedPosition
from windlass.post.data.prepared import PreparedData
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.types import SampleId, SampleRequest, Sampling
from windlass.train.data.protocol import NotReady

__all__ = ["RolloutLoader"]

_NOTE_S = 30.0
"""Wait for a batch after which the first note names whom the run waits for."""


class RolloutLoader(PreparedPosition):
    """Endless batches of answers; the prompt of each group is a pure function of seed and group number.

    Args:
        assembly: makes batches of scored answers.
        open_source: opens what provides samples from a step on; closed by `close`, and opened again by the next batch.
        stop_ids: tokens that end an answer.
        seed: seed of sampling, and of the order if the settings have none.
        is_in_order: whether each batch has the next groups, so that its last one tells where the next batch begins.
    """

    def __init__(
        self,
        data: PreparedData,
        config: MixtureConfig,
        rollout: RolloutConfig,
        *,
        assembly: BatchAssembly,
        open_source: Callable[[GroupPrompts, int], SampleSource],
        stop_ids: tuple[int, ...],
        seed: int,
        is_in_order: bool = False,
    ) -> None:
        settings = ("group_size", "minibatches", "epochs", "refills")
        fingerprint = {f"rollout.{name}": str(getattr(rollout, name)) for name in settings}
        super().__init__(data, config, seed=seed, fingerprint=fingerprint)
        self._open = OpenBatch(rollout.epochs)
        self._is_in_order, self._retired, self._num_batches = is_in_order, RetiredPrompts(rollout.retire), 0
        self._rollout, self._assembly = rollout, assembly
        self._open_source = open_source
        self._source: SampleSource | None = None
        self._source_metrics: Mapping[str, float] = {}
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
        self._rows_of: tuple[int, list[int]] = (-1, [])

    def __iter__(self) -> Iterator[TokenBatch | NotReady]:
        """Yield the batch of each optimiser step, or that it is not ready yet. Endless, except with a replay, or when
        all prompts are retired.
        """
        while True:
            if not self._open.num_left:
                answers = yield from self._answers()
                if answers is None:
                    return
                batches = self._assembly.batches(answers)
                if self._rollout.only:
                    batches = tuple(self._assembly.nothing() for _ in batches)
                self._open.fill(batches, {**self._assembly.metrics, **self._source_metrics})
            yield self._open.take()

    def _answers(self) -> Generator[NotReady, None, list[ScoredSample] | None]:
        """Return the answers to the next prompts; moves the position behind them. None: there are no more."""
        step = self._num_batches * self._rollout.steps_per_batch
        if self._source is None:
            self._source = self._open_source(self, step)
        self._source.begin(step)
        began_s, note_s = time.monotonic(), _NOTE_S
        while isinstance(found := self._source.batch(step), NotReady):
            waited_s = time.monotonic() - began_s
            if waited_s >= note_s and (whom := self._source.waits_for()):
                note_s *= 2
                sys.stderr.write(f"step {step + 1} has waited {waited_s:.0f} s for answers from {whom}\n")
            yield found
        if found is None:
            return None
        self._num_batches += 1
        self.position = found[-1].sample.id.group + 1 if self._is_in_order else self.position + self._config.batch_rows
        self._source_metrics = {**self._source.metrics(), **self._visited(found)}
        return found

    def _visited(self, answers: Sequence[ScoredSample]) -> dict[str, float]:
        """Count the visits of a batch's prompts, and return metrics of their choice."""
        metrics: dict[str, float] = {}
        if self._rollout.refills:
            metrics["rollout/groups"] = float(len({each.sample.id.group for each in answers}))
        if self._rollout.retire is not None:
            for group, members in groupby(answers, key=lambda each: each.sample.id.group):
                self._retired.visit(self.row(group), [each.reward for each in members])
            metrics["rollout/retired_prompts"] = float(len(self._retired))
        return metrics

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
        own = {"sampling_seed": self._sampling.seed, "batches": self._num_batches}
        return {**super().state_dict(), **own, **self._open.state_dict(), **self._retired.state_dict()}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position; answers are sampled with the seed of the run that it is of."""
        super().load_state_dict(state)
        self._rows_of = (-1, [])
        self._sampling = replace(self._sampling, seed=int(state["sampling_seed"]))
        self._num_batches = int(state["batches"])
        self._open.load_state_dict(state)
        is_same_data = decode_json(str(state["data"]))["data.mix"] == self._data.key
        self._retired.load_state_dict(state if is_same_data else {})

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the means over the last batch."""
        return self._open.metrics

    def take(self, position: int, count: int) -> list[int]:
        """Return the numbers of the next groups from a position on, without those of retired prompts."""
        found: list[int] = []
        num_skipped = 0
        while len(found) < count and num_skipped < self._data.num_rows:
            is_retired = self.row(position) in self._retired
            found += [] if is_retired else [position]
            num_skipped = num_skipped + 1 if is_retired else 0
            position += 1
        return found

    def row(self, group: int) -> int:
        """Return the row of a group's prompt in the prepared data."""
        block, place = divmod(group, self._config.batch_rows)
        known, rows = self._rows_of  # threads read it too
        if known != block:
            rows = self.rows_at(block * self._config.batch_rows)
            self._rows_of = (block, rows)
        return rows[place]

    def request(self, sample: SampleId, oldest_version: int) -> SampleRequest:
        """Return the request for a sample, which weights of this version or newer ones may begin."""
        ids, _ = self._data.sequence(self._data.sequences_of(self.row(sample.group))[0])
        return SampleRequest(
            id=sample, prompt_ids=tuple(ids.tolist()), sampling=self._sampling, oldest_version=oldest_version
        )

    def truth(self, group: int) -> object:
        """Return the ground truth of a group's prompt; None if there is none."""
        return self._truths[self.row(group)] if self._truths else None

    def commit(self, step: int, *, oldest_step: int) -> None:
        """Record that a checkpoint exists, and delete samples that need not be kept.

        Args:
            oldest_step: step of the oldest checkpoint.
        """
        if self._source is not None:
            keep = self._rollout.keep_samples
            self._source.commit(step, oldest_step=None if keep is None else min(oldest_step, step - keep))

    def close(self) -> None:
        """Close the source; idempotent. The next batch opens it again."""
        if self._source is not None:
            self._source.close()
            self._source = None
