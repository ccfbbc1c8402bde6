"""Steps per time of the shipped controller of rollouts, in virtual time: `python benches/bench_post_staleness.py`.

32 groups of 8 answers a step, whose lengths are log-normal with sigma 1; one unit of time generates an answer of the median
length. Workers start an answer when they have a free slot, and load new weights with answers in progress. The same lengths
and step times, so the ratio is of schedules alone: bound 0 is batch-synchronous (every step waits for its longest answer,
and generation waits for the step), bound 2 may pass a late group for two steps. Also the time that the controller takes by the
clock, without the slowest hundredth of its calls, and the size of its state. Exits with 1 where bound 2 is below its target.
"""

from __future__ import annotations

import heapq
import pickle
import random
import sys
import time
from dataclasses import dataclass

from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.messages import (
    BatchWanted,
    Event,
    Give,
    Load,
    SampleScored,
    UseBatch,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
)
from windlass.post.rollout.types import SampleId

GROUPS, MEMBERS, NUM_WORKERS, NUM_STEPS = 32, 8, 4, 200
TARGET = 1.8
LOADS = ((64, 1.0), (64, 4.0), (128, 1.0), (128, 3.0), (256, 1.0), (256, 3.0))
"""Slots, and the time of an optimiser step."""

WAYS = {"bound 0": (0, 0), "bound 1, ahead 1": (1, 1), "bound 2, ahead 1": (2, 1), "bound 2, ahead 2": (2, 2)}


@dataclass(slots=True)
class Played:
    """What a run took: virtual time of a step, share of the slots in use, lag of answers, and the controller's own cost."""

    time: float
    busy: float
    lag: float
    max_lag: int
    microseconds: float
    num_bytes: int


class Run:
    """Workers with slots and a learner around the controller; everything but time is the shipped code."""

    def __init__(self, bound: int, ahead: int, num_slots: int, step_time: float) -> None:
        config = ControllerConfig(groups_per_batch=GROUPS, group_size=MEMBERS, bound=bound, ahead=ahead)
        self.controller = RolloutController(config)
        self.step_time, self.num_slots = step_time, num_slots
        self.now, self.step, self.num_samples, self.used = 0.0, 0, 0, 0.0
        self.spent_s: list[float] = []
        self.versions = dict.fromkeys((f"w{number}" for number in range(NUM_WORKERS)), 0)
        self.started: dict[int, list[int]] = {}
        self.tasks: list[tuple[float, int, Event]] = []
        self.lags: list[int] = []

    def play(self) -> Played:
        for name in self.versions:
            self.send(WorkerJoined(worker=name, num_slots=self.num_slots // NUM_WORKERS, version=0))
        self.send(BatchWanted(step=0))
        while self.step < NUM_STEPS:
            self.now, _, event = heapq.heappop(self.tasks)
            self.send(event)
            if isinstance(event, WeightsPublished):
                self.step = event.version
                self.send(BatchWanted(step=self.step))
        return Played(
            time=self.now / NUM_STEPS,
            busy=self.used / self.now / self.num_slots,
            lag=sum(self.lags) / len(self.lags),
            max_lag=max(self.lags),
            microseconds=1e6 * sum(sorted(self.spent_s)[: -len(self.spent_s) // 100]) / self.num_samples,
            num_bytes=len(pickle.dumps(vars(self.controller))),
        )

    def after(self, delay: float, event: Event) -> None:
        heapq.heappush(self.tasks, (self.now + delay, len(self.lags) + self.num_samples + len(self.tasks), event))

    def send(self, event: Event) -> None:
        begin = time.perf_counter()
        commands = self.controller.handle(event, self.now)
        self.spent_s.append(time.perf_counter() - begin)
        for command in commands:
            match command:
                case Give():
                    for claim in command.claims:
                        self.generate(command.worker, claim.id)
                case Load():
                    self.versions[command.worker] = command.version
                    self.send(WeightsLoaded(worker=command.worker, version=command.version))
                case UseBatch():
                    self.lags += [
                        self.step - version for group in command.groups for version in self.started.pop(group)
                    ]
                    self.after(self.step_time, WeightsPublished(version=self.step + 1))

    def generate(self, worker: str, sample: SampleId) -> None:
        version = self.versions[worker]
        self.started.setdefault(sample.group, []).append(version)
        duration = random.Random(sample.group * MEMBERS + sample.member).lognormvariate(0, 1)
        self.num_samples += 1
        self.used += duration
        length = int(100 * duration)
        self.after(duration, SampleScored(worker=worker, id=sample, oldest_version=version, length=length))


def main() -> int:
    """Print time per step, slots in use and lags for each load; 1 when the target is missed."""
    is_reached = True
    for num_slots, step_time in LOADS:
        print(f"{num_slots} slots on {NUM_WORKERS} workers, a step takes {step_time:g}")
        base = 0.0
        for name, (bound, ahead) in WAYS.items():
            played = Run(bound, ahead, num_slots, step_time).play()
            base = base or played.time
            ratio = base / played.time
            print(
                f"  {name:<18}{played.time:7.2f} a step{ratio:6.2f}x{played.busy:7.1%} of slots, lag {played.lag:.2f}"
                f" (most {played.max_lag}), controller {played.microseconds:.1f} us a sample, {played.num_bytes / 1e3:.0f} kB"
            )
            is_reached = is_reached and (bound < 2 or ratio >= TARGET)
    print(f"bound 2 beside bound 0: target {TARGET}, {'reached' if is_reached else 'MISSED'}")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
