"""Deterministic simulation of rollouts: the shipped controller between a learner, workers, a log and their failures.

A seed draws a scenario and its history. One unit of time is the usual time of an optimiser step. Messages of workers are
late, repeated and out of order, up to 50 steps; workers leave, die at any point, are given up although they live, and come
back; engines read caches that are too old; the learner goes back to its last checkpoint, with the controller or without it,
and then the log has lost whatever was written after the last reservation.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from tests.post.control.invariants import Choice, Failure, Invariants, row_of
from tests.post.control.mutants import mutated
from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.messages import (
    BatchWanted,
    CancelSamples,
    CheckpointCommitted,
    Command,
    Event,
    Give,
    GroupRejected,
    LearnerRestarted,
    Load,
    SampleGenerated,
    SampleScored,
    UseBatch,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from windlass.post.rollout.types import SampleId
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, Record, ReserveBatch, Scored

__all__ = ["Result", "Scenario", "draw", "simulate"]

LONGEST_DELAY = 50.0
COMMAND_DELAY = 0.02
"""Commands reach a worker in order; what it sends does not keep its order."""
PATIENCE = 2000.0
"""Time without a finished step after which the run counts as stuck; many times the sum of all delays of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A load and the rates of its failures; rates are probabilities per message, sample or step."""

    seed: int
    config: ControllerConfig
    num_workers: int
    num_slots: int
    num_steps: int
    sigma: float = 1.0
    checkpoint_every: int = 5
    is_in_flight: bool = True
    is_scored_apart: bool = False
    deaths: float = 0.0
    suspicions: float = 0.0
    repeats: float = 0.0
    delays: float = 0.0
    old_caches: float = 0.0
    rejections: float = 0.0
    restarts: float = 0.0
    process_kills: float = 0.0
    kills_at_commands: float = 0.0
    passes: float = 0.0
    last_group: int | None = None


@dataclass(slots=True, kw_only=True)
class Result:
    """What became of a history."""

    failure: str = ""
    lengths: list[int] = field(default_factory=list)
    max_lag: int = 0
    num_steps: int = 0
    num_events: int = 0
    num_killed: int = 0
    killed_after: Counter[str] = field(default_factory=Counter)
    time: float = 0.0


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed; every third one is synchronous, every fourth one has no failures."""
    rng = random.Random(seed)
    steps_per_batch = rng.choice([1, 1, 1, 2, 3])
    slack = 0 if seed % 3 == 0 else rng.choice([1, 2, 2, 3, 5, 50])
    config = ControllerConfig(
        groups_per_batch=rng.randint(1, 5),
        group_size=rng.randint(1, 4),
        bound=slack * steps_per_batch + steps_per_batch - 1 + (rng.randrange(steps_per_batch) if slack else 0),
        ahead=rng.randint(0, min(slack, 3)),
        steps_per_batch=steps_per_batch,
        max_replaced=rng.choice([0, 2, 64]),
    )
    is_calm = seed % 4 == 0

    def rate(most: float) -> float:
        return 0.0 if is_calm or rng.random() < 0.4 else rng.uniform(0, most)

    return Scenario(
        seed=seed,
        config=config,
        num_workers=rng.randint(1, 4),
        num_slots=rng.randint(1, 8),
        num_steps=rng.randint(15, 50),
        sigma=rng.choice([0.0, 0.5, 1.0, 1.5]),
        checkpoint_every=rng.randint(1, 9),
        is_in_flight=rng.random() < 0.6,
        is_scored_apart=rng.random() < 0.4,
        deaths=rate(0.05),
        suspicions=rate(0.05),
        repeats=rate(0.3),
        delays=rate(0.05),
        old_caches=rate(0.1),
        rejections=rng.choice([0.0, 0.0, 0.2]),
        restarts=rate(0.1),
        process_kills=rate(0.1),
        kills_at_commands=rate(0.004),
        # bound 0 without them, where batches are known in advance
        passes=rng.choice([0.0, 0.3, 0.7]) if seed % 3 else 0.0,
        last_group=rng.randint(20, 200) if seed % 3 and rng.random() < 0.3 else None,
    )


def simulate(scenario: Scenario | int, *, mutant: str = "") -> Result:
    """Play a scenario, or that of a seed, with the shipped controller or with a mutant of it."""
    world = _World(draw(scenario) if isinstance(scenario, int) else scenario)
    with mutated(mutant) if mutant else nullcontext():
        try:
            world.play()
        except Failure as failure:
            world.result.failure = f"seed {world.scenario.seed} at {world.now:.2f}: {failure}"
        except (KeyError, ValueError, IndexError) as error:
            world.result.failure = f"seed {world.scenario.seed} at {world.now:.2f}: {error!r}"
    return world.result


class _Engine:
    """A worker: slots, weights of one version, and what it was given."""

    def __init__(self, name: str, num_slots: int) -> None:
        self.name, self.num_slots, self.version = name, num_slots, -1
        self.is_alive = True
        self.wanted_version = -1
        self.waiting: dict[SampleId, int] = {}  # oldest version by sample
        self.running: dict[SampleId, int] = {}  # oldest version read by sample


class _World:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.config = scenario, scenario.config
        self.rng = random.Random(scenario.seed + 1_000_003)
        self.now, self.num_tasks = 0.0, 0
        self.tasks: list[tuple[float, int, Callable[[], None]]] = []
        self.log: list[Record] = []
        self.num_durable = 0
        self.choice = self.new_choice()
        self.controller: RolloutController | None = RolloutController(
            self.config, rows=row_of, choose=self.choice.next, on_reserve=self.choice.on_reserve
        )
        self.engines: dict[str, _Engine] = {}
        self.num_named = 0
        self.learner_epoch = self.process_epoch = 0
        self.step = self.committed = 0
        self.is_training = True  # until it wants a batch
        self.last_progress = 0.0
        has_rejections = scenario.rejections > 0
        self.held = Invariants(scenario.config, self.is_rejected, has_rejections=has_rejections, choice=self.new_choice)
        self.is_over = False
        self.result = Result()

    # ---------------------------------------------------------------------------------------------------- driving

    def play(self) -> None:
        for _ in range(self.scenario.num_workers):
            self.join()
        self.send(WeightsPublished(version=0))
        self.want()
        while self.step < self.scenario.num_steps and not self.is_over:
            if not self.tasks:
                raise Failure("nothing left to do: everybody waits")
            self.now, _, task = heapq.heappop(self.tasks)
            if self.now - self.last_progress > PATIENCE:
                raise Failure(
                    f"no step for {PATIENCE} steps' time; waits: {self.controller and self.controller.waits()}"
                )
            task()
        self.result.num_steps, self.result.time = self.step, self.now
        self.result.max_lag, self.result.lengths = self.held.max_lag, self.held.lengths
        self.held.check_prompts()

    def new_choice(self) -> Choice:
        seed, passes = self.scenario.seed, self.scenario.passes
        return Choice(lambda group, count: _fraction(seed, group, count // 3, 78) < passes, self.scenario.last_group)

    def after(self, delay: float, task: Callable[[], None]) -> None:
        self.num_tasks += 1
        heapq.heappush(self.tasks, (self.now + delay, self.num_tasks, task))

    def happens(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    def delay(self) -> float:
        return self.rng.uniform(0, LONGEST_DELAY) if self.happens(self.scenario.delays) else self.rng.uniform(0, 0.05)

    def post(self, event: Event) -> None:
        """Send a worker's message, perhaps late, perhaps twice; a process that is down loses half of them."""
        for _ in range(2 if self.happens(self.scenario.repeats) else 1):
            self.after(self.delay(), lambda: self.arrive(event))

    def arrive(self, event: Event) -> None:
        if self.controller is None:
            if self.rng.random() < 0.5:
                self.after(5.0, lambda: self.arrive(event))
            return
        if isinstance(event, SampleGenerated):
            self.send(event)
            epoch = self.process_epoch
            scored = SampleScored(
                worker=event.worker, id=event.id, oldest_version=event.oldest_version, length=event.length
            )
            self.after(self.delay(), lambda: self.send(self.judged(scored)) if epoch == self.process_epoch else None)
        elif isinstance(event, SampleScored):
            self.send(self.judged(event))
        else:
            self.send(event)

    def judged(self, event: SampleScored) -> SampleScored:
        """Reject a group with its last sample."""
        done = self.held.scored[event.id.group]
        is_last = event.id.member not in done and len(done) == self.config.group_size - 1
        return replace(event, rejected="constant") if is_last and self.is_rejected(event.id.group) else event

    def is_rejected(self, group: int) -> bool:
        return self.scenario.rejections > 0 and _fraction(self.scenario.seed, group, 77) < self.scenario.rejections

    def send(self, event: Event) -> None:
        """Let the controller handle an event, and obey it."""
        if self.controller is None:
            return
        self.result.num_events += 1
        if isinstance(event, WeightsLoaded | WorkerJoined) and event.version is not None:
            self.held.known_version[event.worker] = max(event.version, self.held.known_version.get(event.worker, -1))
        for command in self.controller.handle(event, self.now):
            self.obey(command)
            if self.happens(self.scenario.kills_at_commands):
                self.result.killed_after[type(command).__name__] += 1
                self.kill_process()
                return
        if self.result.num_events % 10 == 0:
            who = [wait.who for wait in self.controller.waits()]
            if self.is_waiting != ("learner" in who[:1]):
                raise Failure(f"waits() names {who}; the learner {'waits' if self.is_waiting else 'trains'}")

    def obey(self, command: Command) -> None:
        match command:
            case Give():
                self.held.check_give(command)
                self.after(COMMAND_DELAY, lambda: self.receive(command))
            case Load():
                self.after(COMMAND_DELAY, lambda: self.load(command))
            case CancelSamples():
                self.after(COMMAND_DELAY, lambda: self.cancel(command))
            case UseBatch():
                self.use(command)
            case PlanGroup() | Scored() | DropGroup() | ReserveBatch() | CommitStep():
                self.log.append(command)
                self.held.view(command)
                if isinstance(command, ReserveBatch | CommitStep):
                    self.num_durable = len(self.log)

    # ---------------------------------------------------------------------------------------------------- workers

    def join(self) -> None:
        self.num_named += 1
        engine = _Engine(f"w{self.num_named}", self.scenario.num_slots)
        self.engines[engine.name] = engine
        self.send(WorkerJoined(worker=engine.name, num_slots=engine.num_slots))

    def rejoin(self, engine: _Engine) -> None:
        if engine.is_alive:
            holds = (*engine.waiting, *engine.running)
            version = engine.version if engine.version >= 0 else None
            self.send(WorkerJoined(worker=engine.name, num_slots=engine.num_slots, version=version, holds=holds))

    def receive(self, command: Give) -> None:
        engine = self.engines.get(command.worker)
        if engine is None or not engine.is_alive:
            return
        for claim in command.claims:
            engine.waiting[claim.id] = claim.oldest_version
        self.begin(engine)

    def begin(self, engine: _Engine) -> None:
        """Start what the weights are new enough for."""
        for sample_id, oldest in list(engine.waiting.items()):
            if oldest > engine.version:
                continue
            del engine.waiting[sample_id]
            is_old = self.happens(self.scenario.old_caches)
            engine.running[sample_id] = max(0, engine.version - self.rng.randint(1, 4)) if is_old else engine.version
            self.after(self.duration(sample_id), lambda sample_id=sample_id: self.finish(engine, sample_id))  # type: ignore[misc]
        self.try_to_load(engine)

    def duration(self, sample_id: SampleId) -> float:
        return _length(self.scenario, sample_id) / 100 * self.rng.uniform(0.9, 1.1)

    def finish(self, engine: _Engine, sample_id: SampleId) -> None:
        if not engine.is_alive or sample_id not in engine.running:
            return
        kind = SampleGenerated if self.scenario.is_scored_apart else SampleScored
        oldest, length = engine.running.pop(sample_id), _length(self.scenario, sample_id)
        self.post(kind(worker=engine.name, id=sample_id, oldest_version=oldest, length=length))
        self.try_to_load(engine)
        if self.happens(self.scenario.deaths):
            self.die(engine)
        elif self.happens(self.scenario.suspicions):
            self.send(WorkerLeft(worker=engine.name))
            self.after(self.rng.uniform(0, LONGEST_DELAY), lambda: self.rejoin(engine))

    def die(self, engine: _Engine) -> None:
        engine.is_alive = False
        self.result.num_killed += 1
        self.after(self.delay(), lambda: self.send(WorkerLeft(worker=engine.name)))
        self.after(self.rng.uniform(0, 5), self.join)

    def cancel(self, command: CancelSamples) -> None:
        engine = self.engines[command.worker]
        for sample_id in command.ids:
            engine.waiting.pop(sample_id, None)
            engine.running.pop(sample_id, None)
        self.try_to_load(engine)

    def load(self, command: Load) -> None:
        engine = self.engines[command.worker]
        engine.wanted_version = command.version
        self.try_to_load(engine)

    def try_to_load(self, engine: _Engine) -> None:
        """Load in flight if the engine can, otherwise when it generates nothing."""
        is_free = self.scenario.is_in_flight or not engine.running
        if not engine.is_alive or engine.wanted_version <= engine.version or not is_free:
            return
        engine.version = engine.wanted_version
        self.post(WeightsLoaded(worker=engine.name, version=engine.version))
        self.begin(engine)

    # ---------------------------------------------------------------------------------------------------- learner

    @property
    def is_waiting(self) -> bool:
        return not self.is_training and self.controller is not None

    def want(self) -> None:
        self.is_training = False
        if self.controller is not None:
            if self.happens(self.scenario.repeats):
                self.send(BatchWanted(step=self.step))
            if not self.is_training:
                self.send(BatchWanted(step=self.step))

    def use(self, command: UseBatch) -> None:
        if self.is_training or command.step != self.step:
            raise Failure(f"batch of step {command.step} handed out at step {self.step}")
        if not command.groups:
            if not self.held.is_last or self.held.open:
                raise Failure(f"no batch at step {command.step}, with {len(self.held.open)} open groups")
            self.is_over = self.is_training = True
            return
        self.held.check_batch(command)
        self.is_training = True
        self.train()

    def train(self) -> None:
        epoch = self.learner_epoch
        duration = self.rng.uniform(0.5, 1.5) if not self.happens(self.scenario.delays) else self.delay()
        self.after(duration, lambda: self.finish_step() if epoch == self.learner_epoch else None)

    def finish_step(self) -> None:
        self.step += 1
        self.last_progress = self.now
        self.send(WeightsPublished(version=self.step))
        if self.controller is not None and self.step % self.scenario.checkpoint_every == 0:
            self.committed = self.step
            self.send(CheckpointCommitted(step=self.step))
        if self.controller is None:
            return
        if self.happens(self.scenario.process_kills):
            self.after(self.rng.uniform(0, 3), self.kill_process)
        elif self.happens(self.scenario.restarts):
            self.after(self.rng.uniform(0, 3), self.restart)
        if self.step % self.config.steps_per_batch:
            self.train()
        else:
            self.want()

    def restart(self) -> None:
        """The learner goes back to its checkpoint; controller and workers live on."""
        if self.controller is not None:
            self.learner_epoch += 1
            self.result.num_killed += 1
            self.step, self.is_training = self.committed, True
            self.send(LearnerRestarted(step=self.step))
            self.send(WeightsPublished(version=self.step))
            self.want()

    def kill_process(self) -> None:
        """Learner and controller die, and the log loses records that were not durable."""
        if self.controller is None:
            return
        self.controller, self.is_training = None, False
        self.learner_epoch += 1
        self.process_epoch += 1
        self.result.num_killed += 1
        del self.log[self.rng.randint(self.num_durable, len(self.log)) :]
        self.after(self.rng.uniform(0, 10), self.come_back)

    def compacted(self) -> list[Record]:
        """Return the records that still count, in the order in which the sample log yields them."""
        first = self.committed - self.committed % self.config.steps_per_batch
        reserved = [each for each in self.log if isinstance(each, ReserveBatch) and each.step >= first]
        live = {group for each in reserved for group in each.groups} | self.held.open.keys()
        plans = [each for each in self.log if isinstance(each, PlanGroup) and each.group in live]
        scores = [each for each in self.log if isinstance(each, Scored) and each.id.group in live]
        last = max((place for place, each in enumerate(self.log) if isinstance(each, ReserveBatch)), default=0)
        drops = [each for each in self.log[last:] if isinstance(each, DropGroup)]
        return [*plans, *scores, *reserved, *drops]

    def come_back(self) -> None:
        self.step = self.committed
        self.is_training = True
        self.held.read(self.log)
        self.held.known_version = {}
        records, next_group = (self.log, 0) if self.happens(0.5) else (self.compacted(), self.held.next_group)
        self.choice = self.new_choice()
        for each in self.log:
            if isinstance(each, ReserveBatch):
                self.choice.on_reserve(each.groups)
        self.controller = RolloutController.rebuilt(
            self.config,
            records,
            step=self.step,
            next_group=next_group,
            rows=row_of,
            choose=self.choice.next,
            on_reserve=self.choice.on_reserve,
        )
        for group in self.controller.complete:
            if self.is_rejected(group):  # the process died between the last sample and the rejection
                self.send(GroupRejected(group=group, reason="constant"))
        self.send(WeightsPublished(version=self.step))
        for engine in list(self.engines.values()):
            self.after(self.delay(), lambda engine=engine: self.rejoin(engine))  # type: ignore[misc]
        self.want()


def _fraction(*numbers: int) -> float:
    return random.Random(hash(numbers)).random()


def _length(scenario: Scenario, sample_id: SampleId) -> int:
    """Return a sample's length; the same in every attempt, because random numbers do not depend on it."""
    rng = random.Random(hash((scenario.seed, sample_id.group, sample_id.member)))
    return 1 + int(100 * rng.lognormvariate(0, scenario.sigma))
