"""Random histories of a sweep: what happens next depends on the statuses so far, and on the seed alone otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Event = tuple[Any, ...]
ONE_CPU = ([{"CPU": 1.0}], "PACK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What may happen in a stream.

    Attributes:
        time_attr: what the scheduler calls time.
        max_trials, num_events: sizes.
        ends: how often trials complete, fail for good, fail and come back, are removed or paused from outside.
        lacks: how often a result lacks an attribute.
        odd: how often a score is NaN or infinite.
        skips: how often time jumps.
        is_whole: time goes in whole steps.
        config: of each trial.
        shape: bundles and strategy of each trial.
    """

    time_attr: str = "training_iteration"
    max_trials: int = 12
    num_events: int = 90
    ends: float = 0.04
    lacks: float = 0.02
    odd: float = 0.03
    skips: float = 0.1
    is_whole: bool = True
    pauses: float = 0.0
    lacks_at_end: bool = True
    num_slots: int = 4
    config: dict[str, Any] = field(default_factory=dict)
    shape: tuple[list[dict[str, float]], str] = ONE_CPU


def events(rng: Random, habits: Habits, statuses: list[str]) -> Iterator[Event]:
    """Events one by one; `statuses` holds the letters of all trials, and is kept up to date by who reads."""
    times: dict[str, float] = {}
    is_coarse = rng.random() < 0.6
    for _ in range(habits.num_events):
        letters = statuses[0]
        running = [f"{index:05d}" for index, letter in enumerate(letters) if letter == "R"]
        waiting = [f"{index:05d}" for index, letter in enumerate(letters) if letter in "PU"]
        if len(letters) < habits.max_trials and (not letters or rng.random() < 0.15):
            yield "add", f"{len(letters):05d}"
        elif len(running) < habits.num_slots and (not running or rng.random() < 0.5):
            yield ("choose",)
        elif waiting and rng.random() < habits.ends / 4:
            yield "remove", rng.choice(waiting)
        elif running:
            yield _of_running(rng, habits, rng.choice(running), times, is_coarse)


def _of_running(rng: Random, habits: Habits, trial: str, times: dict[str, float], is_coarse: bool) -> Event:
    draw = rng.random()
    if draw < habits.ends / 4:
        return "complete", trial, _result(rng, habits, trial, times, is_coarse, 0 if not habits.lacks_at_end else None)
    if draw < habits.ends / 2:
        return "fail", trial, rng.random() < 0.5
    if draw < habits.ends / 2 + habits.pauses:
        return "pause", trial
    return "report", trial, _result(rng, habits, trial, times, is_coarse, None)


def _result(
    rng: Random, habits: Habits, trial: str, times: dict[str, float], is_coarse: bool, lacks: float | None
) -> dict[str, Any]:
    step = rng.choice([2, 3, 5, 9, 30]) if rng.random() < habits.skips else 1
    times[trial] = times.get(trial, 0) + (step if habits.is_whole else step * rng.random())
    if rng.random() < habits.odd:
        score = rng.choice([math.nan, math.inf, -math.inf])
    elif is_coarse:
        score = rng.randrange(-8, 8) / 8
    else:
        score = rng.gauss(0, 1)
    result = {"training_iteration": int(times[trial]) + 1, habits.time_attr: times[trial], "score": score}
    if rng.random() < (habits.lacks if lacks is None else lacks):
        del result[rng.choice([habits.time_attr, "score"])]
    return result
