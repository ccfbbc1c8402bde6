"""Rollouts while the learner learns: worker processes generate, and threads beside the learner direct and score them.

The learner's process holds everything: the controller decides, the sample log remembers, workers fetch weights by
themselves. A worker that dies costs the samples that it was generating; another one is started.

    learner          advance(weights) ... batch(step) -> samples of whole groups, or that they are late
    director         polls workers, carries out the controller's commands, starts workers again
    scorer           scores finished samples
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.post.control.controller import RolloutController
from windlass.post.control.messages import (
    BatchWanted,
    CancelSamples,
    CheckpointCommitted,
    Command,
    Event,
    Give,
    GroupRejected,
    Load,
    SampleGenerated,
    SampleScored,
    UseBatch,
    Wait,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from windlass.post.control.records import CommitStep, DropGroup, PlanGroup, ReserveBatch, oldest_version
from windlass.post.control.sample_log import SampleLog
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.source import GroupPrompts
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.remote import RemoteEngine
from windlass.post.rollout.types import Sample
from windlass.train.data.protocol import NotReady
from windlass.train.parallel.world import World

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.weights.store import Probe, WeightRef

__all__ = ["AsyncRollouts", "SharedRollouts"]

_POLL_S = 0.02
_BATCH_WAIT_S = 1.0
_MAX_STARTS = 5
"""Starts of a worker without a finished sample between them, after which the run ends."""


@dataclass(slots=True)
class _Worker:
    engine: RemoteEngine
    has_joined: bool = False
    version: int = -1
    num_starts: int = 1


class AsyncRollouts:
    """Samples by worker processes, within the controller's bound of staleness.

    Args:
        controller: new, or rebuilt from the log's records.
        prompts: what each group asks.
        publish: stores weights as a version, for workers to fetch.
        start: starts the process of a worker, by its number, with a version; does not wait for it.
        close: removes what was published.
        log: remembers plans, samples and batches; None: a run that stores nothing.
        finished: scored samples of the controller's open groups, from the log.
        judge: returns why a group of scored samples should not be trained on; empty: it should be.
    """

    def __init__(
        self,
        controller: RolloutController,
        prompts: GroupPrompts,
        *,
        num_workers: int,
        publish: Callable[[Mapping[str, Tensor], Probe, int], WeightRef],
        start: Callable[[int, WeightRef], RemoteEngine],
        close: Callable[[], object],
        scorer: AnswerScorer,
        log: SampleLog | None = None,
        finished: Sequence[ScoredSample] = (),
        judge: Callable[[Sequence[ScoredSample]], str] = lambda _: "",
    ) -> None:
        self._controller, self._prompts, self._log = controller, prompts, log
        self._publish, self._start, self._scorer, self._judge = publish, start, scorer, judge
        self._remove_weights = close
        self._names = [f"worker-{number}" for number in range(num_workers)]
        self._workers: dict[str, _Worker] = {}
        self._starts: dict[str, int] = dict.fromkeys(self._names, 0)
        self._ref: WeightRef | None = None
        self._orders: deque[Give | Load | CancelSamples] = deque()
        self._unscored: deque[tuple[str, Sample]] = deque()
        self._group_size = controller.config.group_size
        self._groups: dict[int, dict[int, ScoredSample]] = {}
        self._batches: dict[int, list[ScoredSample]] = {}
        self._measured: dict[str, float] = {}
        self._wanted_s: float | None = None
        self._complete_s: dict[int, float] = {}
        self._error: BaseException | None = None
        self._is_closing = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        for scored in finished:
            self._keep(scored)
        for group in controller.complete:  # the process may have died before they were judged
            if reason := judge(self._samples(group)):
                self._handle(GroupRejected(group=group, reason=reason))

    # ------------------------------------------------------------------------------------------------------- learner

    def advance(self, weights: Mapping[str, Tensor], probe: Probe, version: int) -> None:
        """Publish the learner's weights after this number of steps; starts workers and threads the first time."""
        ref = self._publish(weights, probe, version)
        with self._changed:
            self._ref = ref
            self._handle(WeightsPublished(version=version))
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, args=(work,), name=f"rollouts-{name}", daemon=True)
                for name, work in (("director", self._direct), ("scorer", self._score))
            ]
            for thread in self._threads:
                thread.start()

    def batch(self, step: int) -> list[ScoredSample] | NotReady:
        """Return the samples of the batch of a step; waits up to a second for them.

        Raises:
            EngineError: workers keep dying, or another error of a thread.
        """
        with self._changed:
            self._wanted_s = self._wanted_s or time.monotonic()
            if step not in self._batches:
                self._handle(BatchWanted(step=step))
                self._changed.wait_for(lambda: step in self._batches or self._error is not None, _BATCH_WAIT_S)
            if self._error is not None:
                raise self._error
            found = self._batches.pop(step, None)
            if found is None:
                return NotReady.BATCH
            self._measure(found, step)
        return found

    def _measure(self, found: Sequence[ScoredSample], step: int) -> None:
        """Note how old the tokens of a batch are, and who waited for it."""
        now_s = time.monotonic()
        lags = [step - oldest_version(scored.sample.spans) for scored in found]
        waited = [now_s - self._complete_s.pop(group, now_s) for group in {each.sample.id.group for each in found}]
        self._measured = {
            "rollout/learner_wait_s": now_s - (self._wanted_s or now_s),
            "rollout/samples_wait_s": sum(waited) / len(waited),
            "rollout/lag": sum(lags) / len(lags),
            "rollout/lag_max": float(max(lags)),
        }
        self._wanted_s = None

    def commit(self, step: int, *, oldest_step: int | None) -> None:
        """Note that a checkpoint with this number of finished steps is durable."""
        with self._changed:
            self._handle(CheckpointCommitted(step=step))
            if self._log is not None:
                self._log.commit(step, oldest_step=oldest_step)

    def metrics(self) -> dict[str, float]:
        """Return the waits and lags of the last batch, and how often what the controller counts has happened."""
        with self._changed:
            counts = {f"rollout/{name}": float(count) for name, count in sorted(self._controller.counts.items())}
        return {**self._measured, **counts}

    def waits_for(self) -> str:
        """Return the workers that generate what the learner waits for, or that none is ready."""
        with self._changed:
            waits = [wait for wait in self._controller.waits() if wait.what == "samples"]
            is_ready = any(worker.has_joined for worker in self._workers.values())
        if not is_ready:
            return "workers, which are starting"
        return ", ".join(sorted({name for wait in waits for name in wait.on})) or "workers"

    def close(self) -> None:
        """End the threads and the workers; idempotent. What is generated and not scored is lost."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for worker in self._workers.values():
            worker.engine.close()
        self._workers.clear()
        self._scorer.close()
        self._remove_weights()
        if self._log is not None:
            self._log.close()

    # -------------------------------------------------------------------------------------- events and their commands

    def _handle(self, event: Event) -> None:
        """Let the controller decide, store what it decides, and note what the director has to do. Needs the lock."""
        is_stored = False
        for command in self._controller.handle(event, time.monotonic()):
            is_stored = self._carry_out(command) or is_stored
        if is_stored and self._log is not None:
            self._log.write()
        self._changed.notify_all()

    def _carry_out(self, command: Command) -> bool:
        """Carry out a command; returns whether the log has new records."""
        match command:
            case PlanGroup() | DropGroup():
                if self._log is not None:
                    self._log.append(command)
                if isinstance(command, DropGroup):
                    self._groups.pop(command.group, None)
                    self._complete_s.pop(command.group, None)
                return True
            case ReserveBatch():
                if self._log is not None:
                    self._log.append(command)
                    self._log.flush()  # durable before a step uses it
            case UseBatch():
                self._batches[command.step] = self._taken(command)
            case Give() | Load() | CancelSamples():
                self._orders.append(command)
            case Wait() | CommitStep():
                pass  # `waits` tells, and the log records a checkpoint by itself
        return False

    def _taken(self, command: UseBatch) -> list[ScoredSample]:
        """Return the samples of a batch: those just reserved, or stored ones of a batch that is used again."""
        if self._log is not None and any(group not in self._groups for group in command.groups):
            stored = self._log.stored(command.step)
            assert stored is not None
            return stored
        found = [each for group in command.groups for each in self._samples(group)]
        for group in command.groups:
            del self._groups[group]
        return found

    def _samples(self, group: int) -> list[ScoredSample]:
        return [each for _, each in sorted(self._groups[group].items())]

    def _keep(self, scored: ScoredSample) -> None:
        self._groups.setdefault(scored.sample.id.group, {})[scored.sample.id.member] = scored

    # ------------------------------------------------------------------------------------------------------- threads

    def _run(self, work: Callable[[], None]) -> None:
        """Do a thread's work until the end; an error is raised by the next `batch`."""
        try:
            while not self._is_closing:
                work()
        except BaseException as error:  # noqa: BLE001 - the learner raises it
            with self._changed:
                self._error = self._error or error
                self._is_closing = True
                self._changed.notify_all()

    def _direct(self) -> None:
        """Carry out orders and poll every worker once."""
        for name in self._names:
            if name not in self._workers:
                self._begin(name)
        while self._orders:
            self._order(self._orders.popleft())
        for name in self._names:
            self._poll(name)

    def _begin(self, name: str) -> None:
        assert self._ref is not None
        self._starts[name] += 1
        self._workers[name] = _Worker(self._start(self._names.index(name), self._ref), version=self._ref.version)

    def _order(self, order: Give | Load | CancelSamples) -> None:
        worker = self._workers.get(order.worker)
        if worker is None or not worker.has_joined:
            return  # it died since; its claims were given back
        engine = worker.engine
        try:
            if isinstance(order, Load):
                assert self._ref is not None
                engine.begin_load(self._ref)
            elif isinstance(order, CancelSamples):
                engine.cancel(order.ids)
            else:
                requests = [self._prompts.request(each.id, each.oldest_version) for each in order.claims]
                taken = engine.submit(requests)
                assert taken == len(requests)  # the controller gives at most `max_open`
        except EngineError as error:
            self._bury(order.worker, error)

    def _poll(self, name: str) -> None:
        """Take what a worker has: its readiness, its samples, the version that it has loaded."""
        worker = self._workers.get(name)
        if worker is None:
            return
        try:
            if not worker.has_joined:
                self._greet(name, worker)
                return
            samples = worker.engine.poll(_POLL_S / len(self._names))
            version = worker.engine.version()
        except EngineError as error:
            self._bury(name, error)
            return
        with self._changed:
            if version != worker.version:
                worker.version = version
                self._handle(WeightsLoaded(worker=name, version=version))
            for sample in samples:
                if sample.finish != "cancelled":
                    self._starts[name] = 0
                    self._take(name, sample)

    def _greet(self, name: str, worker: _Worker) -> None:
        if not worker.engine.is_ready:
            time.sleep(_POLL_S / len(self._names))
            return
        facts = worker.engine.facts
        worker.has_joined = True
        with self._changed:
            self._handle(WorkerJoined(worker=name, num_slots=facts.num_slots, version=worker.version))

    def _take(self, name: str, sample: Sample) -> None:
        event = SampleGenerated(
            worker=name, id=sample.id, oldest_version=oldest_version(sample.spans), length=len(sample.ids)
        )
        self._handle(event)
        self._unscored.append((name, sample))

    def _bury(self, name: str, error: EngineError) -> None:
        """Give back what a dead worker was generating; it is started again unless that keeps failing.

        Raises:
            EngineError: it has died several times without a sample between.
        """
        self._workers.pop(name).engine.close()
        with self._changed:
            self._controller.counts["worker_deaths"] += 1
            self._handle(WorkerLeft(worker=name))
        if self._starts[name] >= _MAX_STARTS:
            raise EngineError(
                f"{name} died {_MAX_STARTS} times without finishing a sample; the last time: {error.message}",
                hint="look at the run's log for the worker's own error",
            )

    def _score(self) -> None:
        """Score all samples that have arrived."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._unscored) or self._is_closing)
            arrived = [self._unscored.popleft() for _ in range(len(self._unscored))]
            wanted = [(name, sample) for name, sample in arrived if self._is_wanted(sample)]
        if not wanted or self._is_closing:
            return
        samples = [sample for _, sample in wanted]
        prompts = [self._prompts.request(sample.id, 0).prompt_ids for sample in samples]
        truths = [self._prompts.truth(sample.id.group) for sample in samples]
        for (name, _), scored in zip(wanted, self._scorer.score(samples, prompts, truths), strict=True):
            with self._changed:
                self._finish(name, scored)

    def _finish(self, name: str, scored: ScoredSample) -> None:
        """Store a scored sample, and judge its group if it is the last one."""
        sample = scored.sample
        if not self._is_wanted(sample):
            return
        self._keep(scored)
        if self._log is not None:
            self._log.append(scored)
            self._log.write()
        group = self._samples(sample.id.group)
        if len(group) == self._group_size:
            self._complete_s[sample.id.group] = time.monotonic()
        self._handle(
            SampleScored(
                worker=name,
                id=sample.id,
                oldest_version=oldest_version(sample.spans),
                length=len(sample.ids),
                rejected=self._judge(group) if len(group) == self._group_size else "",
            )
        )

    def _is_wanted(self, sample: Sample) -> bool:
        return self._controller.wants(sample.id, oldest_version(sample.spans))


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

    def batch(self, step: int) -> list[ScoredSample] | NotReady:
        """Return the samples of a step. Collective."""
        found = NotReady.BATCH if self._rollouts is None else self._rollouts.batch(step)
        return self._world.from_main(found)

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
