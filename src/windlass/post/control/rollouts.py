"""Rollouts as batches: prompts are answered, scored, and become rows with advantages.

The loader knows which prompts come when and where a run stands in a batch. A source provides the scored answers:
`SyncRollouts` samples with the current weights between two steps, `AsyncRollouts` beside them, `SampleReplay` reads stored ones.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from windlass import report
from windlass.core.errors import Problem, SpecError
from windlass.core.json_text import decode_json
from windlass.post.control.assembly import BatchAssembly, OpenBatch
from windlass.post.control.config import RolloutConfig
from windlass.post.control.prompts import PromptPools, Visit
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.source import GroupPrompts, SampleSource
from windlass.post.data.config import MixtureConfig
from windlass.post.data.position import PreparedPosition
from windlass.post.data.prepared import PreparedData
from windlass.post.environments.tasks import EnvironmentTasks
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.types import SampleId, SampleRequest, Sampling
from windlass.post.samples.frames import encode_frame, samples_of
from windlass.train.data.protocol import NotReady

__all__ = ["RolloutLoader"]

_WITHIN = ("proximal", "samples", "metrics", "steps_taken")
"""State of a checkpoint between two steps of a batch."""
_NOTE_S = 30.0
"""Wait for a batch after which the first note names whom the run waits for."""


class RolloutLoader(PreparedPosition):
    """Endless batches of answers; the prompt of each group is a pure function of seed and group number.

    Args:
        assembly: makes batches of scored answers.
        open_source: opens what provides samples from a step on; closed by `close`, and opened again by the next batch.
        stop_ids: tokens that end an answer.
        seed: seed of sampling, and of the order if the settings have none.
        gather: returns a value of every process of the learner.
        is_in_order: whether each batch has the next groups, so that its last one tells where the next batch begins.
        finish: called when the run is finished.
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
        gather: Callable[[Any], list[Any]] = lambda value: [value],
        is_in_order: bool = False,
        finish: Callable[[], object] = lambda: None,
    ) -> None:
        settings = ("group_size", "minibatches", "epochs", "refills")
        fingerprint = {f"rollout.{name}": str(getattr(rollout, name)) for name in settings}
        super().__init__(data, config, seed=seed, fingerprint=fingerprint)
        self._open, self._gather = OpenBatch(rollout.epochs), gather
        self._within: Mapping[str, int | str] | None = None
        self._is_in_order, self._num_batches = is_in_order, 0
        self.pools = PromptPools(rollout.retire, rollout.pools, num_rows=data.num_rows, seed=seed, rows=self.row)
        self._rollout, self._assembly = rollout, assembly
        self._open_source, self._finish = open_source, finish
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
        self._tasks = EnvironmentTasks(rollout.environments, data)
        self._rows_of: tuple[int, list[int]] = (-1, [])

    def __iter__(self) -> Iterator[TokenBatch | NotReady]:
        """Yield the batch of each optimiser step, or that it is not ready yet. Endless, except with a replay, or when
        all prompts are retired.
        """
        while True:
            if self._within is not None:
                self._continue(self._within)
            elif not self._open.num_left:
                answers = yield from self._answers()
                if answers is None:
                    return
                batches = self._made(answers)
                metrics = {**self._assembly.metrics, **self._source_metrics}
                self._open.fill(batches, metrics, self._kept(answers, metrics))
            yield self._open.take()

    def _made(self, answers: Sequence[ScoredSample], *, proximal: str | None = None) -> tuple[TokenBatch, ...]:
        batches = self._assembly.batches(answers, proximal=proximal)
        return tuple(self._assembly.nothing() for _ in batches) if self._rollout.only else batches

    def _kept(self, answers: Sequence[ScoredSample], metrics: Mapping[str, float]) -> dict[str, str]:
        """Return what a checkpoint within the batch needs; its samples only if nothing else stores them. Collective."""
        if self._rollout.steps_per_batch == 1:
            return {}
        assert self._source is not None
        content = b"" if self._source.has_log else zlib.compress(encode_frame(answers, at=0.0)[0], 1)
        return {
            "proximal": self._assembly.proximal(self._gather),
            "samples": base64.b64encode(content).decode(),
            "metrics": json.dumps({name: _finite(value) for name, value in metrics.items()}),
        }

    def _continue(self, state: Mapping[str, int | str]) -> None:
        """Go on within the batch of a checkpoint. Collective.

        Raises:
            SpecError: its samples are neither in the checkpoint nor in the log of this run.
        """
        step = (self._num_batches - 1) * self._rollout.steps_per_batch
        content = base64.b64decode(str(state["samples"]))
        if self._source is None:
            self._source = self._open_source(self, step + self._rollout.steps_per_batch)
        answers = self._source.stored(step)
        if content:
            answers = [each.scored for each in samples_of(zlib.decompress(content))]
        if answers is None:
            message = f"the checkpoint is within the batch of step {step}, whose samples are not in this run's folder"
            hint = "resume in the folder of its run, copy the folder `samples` too, or load a checkpoint between two batches"
            raise SpecError([Problem(message, "samples-mismatch", hint=hint)])
        kept = {name: str(state[name]) for name in ("proximal", "samples", "metrics")}
        metrics = {name: math.nan if each is None else each for name, each in decode_json(kept["metrics"]).items()}
        self._open.fill(self._made(answers, proximal=kept["proximal"]), metrics, kept, int(state["steps_taken"]))
        self._within = None

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
                report.progress("step", step=step, waits_for=f"answers from {whom}", waited_s=waited_s)
            yield found
        if found is None:
            return None
        self._num_batches += 1
        last = found[-1].sample.id.group + 1
        if self._is_in_order:
            self.position = last
        else:  # groups that are passed over count too
            self.position = max(self.position, last) if self.pools.is_on else self.position + self._config.batch_rows
        self._source_metrics = {**self._visited(found, self._source.dropped()), **self._source.metrics()}
        return found

    def _visited(self, answers: Sequence[ScoredSample], dropped: Sequence[Visit]) -> dict[str, float]:
        """Take the visits of a batch's prompts into account, and return metrics of their choice."""
        metrics: dict[str, float] = {}
        if self._rollout.refills:
            metrics["rollout/groups"] = float(len({each.sample.id.group for each in answers}))
        for row, rewards in (*dropped, *self.visits(answers)):
            self.pools.visit(row, rewards)
        return {**metrics, **self.pools.metrics()}

    def visits(self, answers: Sequence[ScoredSample]) -> list[Visit]:
        """Return the visits of prompts by the answers to them, which are in the order of groups."""
        groups = groupby(answers, key=lambda each: each.sample.id.group)
        return [(self.row(group), [_finite(each.reward) for each in members]) for group, members in groups]

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
        within = self._open.state_dict() if self._within is None else {name: self._within[name] for name in _WITHIN}
        return {**super().state_dict(), **own, **within, **self.pools.state_dict()}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position; answers are sampled with the seed of the run that it is of."""
        super().load_state_dict(state)
        self._rows_of = (-1, [])
        self.pools.seed = int(state["sampling_seed"])
        self._sampling = replace(self._sampling, seed=self.pools.seed)
        self._num_batches = int(state["batches"])
        self._open.fill((), {}, {})
        self._within = state if "steps_taken" in state else None
        is_same_data = decode_json(str(state["data"]))["data.mix"] == self._data.key
        self.pools.load_state_dict(state if is_same_data else {})

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the means over the last batch."""
        return self._open.metrics

    def take(self, position: int, count: int) -> list[int]:
        """Return the numbers of the next groups from a position on, without those that are passed over."""
        found: list[int] = []
        while len(found) < count and (group := self.pools.next_group(position)) is not None:
            found.append(group)
            position = group + 1
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
        row = self.row(sample.group)
        ids, _ = self._data.sequence(self._data.sequences_of(row)[0])
        return SampleRequest(
            id=sample,
            prompt_ids=tuple(ids.tolist()),
            sampling=self._sampling,
            oldest_version=oldest_version,
            task=self._tasks.task(sample.group, row, self._sampling.seed),
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
            keep, size = self._rollout.keep_samples, self._rollout.steps_per_batch
            oldest = None if keep is None else min(oldest_step, step - keep)
            # a checkpoint within a batch needs it
            self._source.commit(step - step % size, oldest_step=None if oldest is None else oldest - oldest % size)

    def close(self, *, is_finished: bool = False) -> None:
        """Close the source; idempotent. The next batch opens it again.

        Args:
            is_finished: whether the run is finished, so that nothing will.
        """
        if self._source is not None:
            self._source.close()
            self._source = None
        if is_finished:
            self._finish()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
