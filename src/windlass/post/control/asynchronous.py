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
from dataclasses import replace
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
from windlass.post.control.prompts import PromptPools, Visit
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.source import GroupPrompts
from windlass.post.control.workers import JoiningWorker, RolloutWorker
from windlass.post.rollout.engine import EngineError, OpenWork
from windlass.post.rollout.types import Sample
from windlass.post.samples.log import SampleLog
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, ReserveBatch, oldest_version
from windlass.post.workers.remote import RemoteEngine
from windlass.train.data.protocol import NotReady

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.weights.store import Probe, WeightRef

__all__ = ["AsyncRollouts"]

_POLL_S = 0.02
_BATCH_WAIT_S = 1.0
_VERSIONS_KEPT = 1000
"""Versions of which the digest is remembered, for workers that come back."""
_MAX_STARTS = 5
"""Starts of a worker without a finished sample between them, after which the run ends."""


class AsyncRollouts:
    """Samples by worker processes, within the controller's bound of staleness.

    Args:
        controller: new, or rebuilt from the log's records.
        prompts: what each group asks.
        publish: stores weights as a version, for workers to fetch.
        start: starts the process of a worker, by its number, with a version; does not wait for it.
        arrivals: returns newly connected workers, given the version to start with; if set, no worker is started here.
        close: removes what was published.
        log: remembers plans, samples and batches; None: a run that stores nothing.
        finished: scored samples of the controller's open groups, from the log.
        pools: choice of prompts that the controller plans with; has all visits of the log. None: all are used.
        judge: returns why a group of scored samples should not be trained on; empty: it should be.
        open_work: treatment of samples in progress by new weights; None: a worker finishes them first, and what it is
            given meanwhile begins with the new weights. Engines that cannot load in flight always do.
    """

    def __init__(
        self,
        controller: RolloutController,
        prompts: GroupPrompts,
        *,
        num_workers: int,
        publish: Callable[[Mapping[str, Tensor], Probe, int], WeightRef],
        start: Callable[[int, WeightRef], RemoteEngine],
        arrivals: Callable[[WeightRef], Sequence[JoiningWorker]] | None = None,
        close: Callable[[], object],
        scorer: AnswerScorer,
        log: SampleLog | None = None,
        finished: Sequence[ScoredSample] = (),
        pools: PromptPools | None = None,
        judge: Callable[[Sequence[ScoredSample]], str] = lambda _: "",
        open_work: OpenWork | None = "recompute",
    ) -> None:
        self._controller, self._prompts, self.log = controller, prompts, log
        self._pools = pools or prompts.pools.copy()
        controller.on_reserve = self._visit
        self._dropped: list[Visit] = []
        self._visits: dict[int, Sequence[Visit]] = {}  # by step, of groups that were dropped before its batch
        self._last_dropped: Sequence[Visit] = ()
        self._reserved: Sequence[Visit] = ()
        self._publish, self._start, self._scorer, self._judge = publish, start, scorer, judge
        self._remove_weights, self._open_work, self._arrivals = close, open_work, arrivals
        self._names = [f"worker-{number}" for number in range(num_workers)] if arrivals is None else []
        self._workers: dict[str, RolloutWorker] = {}
        self._starts: dict[str, int] = dict.fromkeys(self._names, 0)
        self._ref: WeightRef | None = None
        self._published: dict[int, str] = {}
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
            self._published[version] = ref.digest
            self._published.pop(version - _VERSIONS_KEPT, None)
            self._handle(WeightsPublished(version=version))
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, args=(work,), name=f"rollouts-{name}", daemon=True)
                for name, work in (("director", self._direct), ("scorer", self._score))
            ]
            for thread in self._threads:
                thread.start()

    def batch(self, step: int) -> list[ScoredSample] | NotReady | None:
        """Return the samples of the batch of a step; waits up to a second for them. None: no prompt is left.

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
            self._last_dropped = self._visits.pop(step, ())
            if not found:
                return None
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
            if self.log is not None:
                self.log.commit(step, oldest_step=oldest_step)

    def dropped(self) -> Sequence[Visit]:
        """Return the visits of prompts whose groups were dropped before the last batch was complete."""
        return self._last_dropped

    def metrics(self) -> dict[str, float]:
        """Return the waits and lags of the last batch, and how often what the controller counts has happened."""
        with self._changed:
            counts = {f"rollout/{name}": float(count) for name, count in sorted(self._controller.counts.items())}
            return {**self._measured, **counts, **self._pools.metrics(), **self._scorer.metrics()}

    def waits_for(self) -> str:
        """Return the workers that generate what the learner waits for, or that none is ready."""
        with self._changed:
            waits = [wait for wait in self._controller.waits() if wait.what == "samples"]
            is_ready = any(worker.has_joined for worker in self._workers.values())
        if not is_ready and self._arrivals is not None and not self._workers:
            return "workers; start some with `windlass train worker`"
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
        if self.log is not None:
            self.log.close()

    # -------------------------------------------------------------------------------------- events and their commands

    def _handle(self, event: Event) -> None:
        """Let the controller decide, store what it decides, and note what the director has to do. Needs the lock."""
        is_stored = False
        for command in self._controller.handle(event, time.monotonic()):
            is_stored = self._carry_out(command) or is_stored
        if is_stored and self.log is not None:
            self.log.write()
        self._changed.notify_all()

    def _carry_out(self, command: Command) -> bool:
        """Carry out a command; returns whether the log has new records."""
        match command:
            case PlanGroup() | DropGroup():
                if self.log is not None:
                    self.log.append(command)
                if isinstance(command, DropGroup):
                    answers = self._samples(command.group)
                    if self._pools.is_on and len(answers) == self._group_size:
                        self._dropped += self._prompts.visits(answers)
                    self._groups.pop(command.group, None)
                    self._complete_s.pop(command.group, None)
                return True
            case ReserveBatch():
                self._visits[command.step] = self._reserved
                if self.log is not None:
                    dropped = tuple((row, tuple(rewards)) for row, rewards in self._reserved)
                    self.log.append(replace(command, dropped=dropped))
                    self.log.flush()  # durable before a step uses it
            case UseBatch():
                if self.log is not None:
                    self._visits.setdefault(command.step, self.log.visits(command.step))
                self._batches[command.step] = self._taken(command)
            case Give() | Load() | CancelSamples():
                self._orders.append(command)
            case Wait() | CommitStep():
                pass  # `waits` tells, and the log records a checkpoint by itself
        return False

    def _taken(self, command: UseBatch) -> list[ScoredSample]:
        """Return the samples of a batch: those just reserved, or stored ones of a batch that is used again."""
        if self.log is not None and any(group not in self._groups for group in command.groups):
            stored = self.log.stored(command.step)
            assert stored is not None
            return stored
        found = [each for group in command.groups for each in self._samples(group)]
        for group in command.groups:
            del self._groups[group]
        return found

    def _visit(self, groups: Sequence[int]) -> None:
        """Let the choice of prompts take a batch into account, before anything is planned after it.

        A process that dies loses the visits of groups that were dropped since its last batch, and nothing else.
        """
        self._reserved, self._dropped = tuple(self._dropped), []
        answers = [each for group in groups for each in self._samples(group)] if self._pools.is_on else []
        for row, rewards in (*self._reserved, *self._prompts.visits(answers)):
            self._pools.visit(row, rewards)

    def _samples(self, group: int) -> list[ScoredSample]:
        return [each for _, each in sorted(self._groups.get(group, {}).items())]

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
        if self._arrivals is not None:
            self._welcome(self._arrivals)
        while self._orders:
            self._order(self._orders.popleft())
        for name in list(self._workers):
            self._poll(name)
        if not self._workers:
            time.sleep(_POLL_S)

    def _welcome(self, arrivals: Callable[[WeightRef], Sequence[JoiningWorker]]) -> None:
        """Take workers that have connected."""
        assert self._ref is not None
        for each in arrivals(self._ref):
            if (before := self._workers.pop(each.name, None)) is not None:  # its connection broke
                before.engine.close()
            self._workers[each.name] = RolloutWorker(each.engine, keeps=each.may_keep)

    def _begin(self, name: str) -> None:
        assert self._ref is not None
        self._starts[name] += 1
        self._workers[name] = RolloutWorker(self._start(self._names.index(name), self._ref), version=self._ref.version)

    def _order(self, order: Give | Load | CancelSamples) -> None:
        worker = self._workers.get(order.worker)
        if worker is None or not worker.has_joined:
            return  # it died since; its claims were given back
        if isinstance(order, Load) and (worker.unproven or worker.version == order.version):
            return
        try:
            if isinstance(order, Load):
                worker.is_draining = True
                self._load(worker)
            elif isinstance(order, CancelSamples):
                worker.engine.cancel(order.ids)
                worker.held = [
                    replace(give, claims=tuple(each for each in give.claims if each.id not in order.ids))
                    for give in worker.held
                ]
            elif worker.is_draining:
                worker.held.append(order)
            else:
                self._submit(worker, order)
        except EngineError as error:
            self._bury(order.worker, error)

    def _load(self, worker: RolloutWorker) -> None:
        """Let a worker load the newest weights now or, unless it may do so in flight, once it has no open samples."""
        is_in_flight = self._open_work is not None and worker.engine.facts.has_in_flight_update
        if not worker.is_draining or (not is_in_flight and worker.engine.num_open):
            return
        assert self._ref is not None
        worker.engine.begin_load(self._ref, open_work=self._open_work or "recompute")
        held, worker.held, worker.is_draining, worker.is_stale = worker.held, [], False, False
        for give in held:
            self._submit(worker, give)

    def _submit(self, worker: RolloutWorker, give: Give) -> None:
        requests = [self._prompts.request(each.id, each.oldest_version) for each in give.claims]
        taken = worker.engine.submit(requests)
        assert taken == len(requests)  # the controller gives at most `max_open`

    def _poll(self, name: str) -> None:
        """Take what a worker has: its readiness, its samples, the version that it has loaded."""
        worker = self._workers.get(name)
        if worker is None:
            return
        try:
            if not worker.has_joined:
                self._greet(name, worker)
                return
            self._load(worker)  # finds no open samples if it has waited for them
            samples = worker.engine.poll(_POLL_S / len(self._workers))
            version = None if worker.unproven else worker.news()
        except EngineError as error:
            self._bury(name, error)
            return
        with self._changed:
            if worker.unproven:
                worker.withheld += samples
                self._prove(name, worker)
                return
            if version is not None:
                self._handle(WeightsLoaded(worker=name, version=version))
            self._take_all(name, samples)

    def _greet(self, name: str, worker: RolloutWorker) -> None:
        if not worker.engine.is_ready:
            time.sleep(_POLL_S / len(self._workers))
            return
        with self._changed:
            kept = worker.join(self._published, last=self._controller.num_reserved, wants=self._controller.wants)
            if self._arrivals is not None:
                worker.engine.adopt([self._prompts.request(each, 0) for each in kept])
                self._controller.counts["adopted"] += len(kept)
            version = None if worker.version < 0 else worker.version
            num_slots = worker.engine.facts.num_slots
            self._handle(WorkerJoined(worker=name, num_slots=num_slots, version=version, holds=kept))

    def _prove(self, name: str, worker: RolloutWorker) -> None:
        """Use a worker's samples once this learner has made the weights behind them; drop them if it made others."""
        assert self._ref is not None
        if not worker.prove(self._published, self._ref.version):
            self._handle(WorkerLeft(worker=name))
            self._controller.counts["unproven"] += worker.start_over()
        elif not worker.unproven:
            samples, worker.withheld = worker.withheld, []
            self._handle(WeightsLoaded(worker=name, version=worker.version))
            self._take_all(name, samples)
            if worker.version < self._ref.version:
                self._orders.append(Load(worker=name, version=self._ref.version))

    def _take_all(self, name: str, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if sample.finish != "cancelled":
                if name in self._starts:
                    self._starts[name] = 0
                self._take(name, sample)

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
        if self._starts.get(name, 0) >= _MAX_STARTS:
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
        if self.log is not None:
            self.log.append(scored)
            self.log.write()
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
