"""One stream of events given to both sides: every answer, every status, configuration and shape must be the same."""

from __future__ import annotations

import copy
import warnings
from random import Random
from typing import Any

from tests.tune.schedulers.differential.our_side import OurSide
from tests.tune.schedulers.differential.streams import ONE_CPU, Event, Habits, events
from windlass.core.errors import WindlassError


class Differs(AssertionError):
    """The sides do not agree."""


def play(ours: OurSide, rays: Any, habits: Habits, rng: Random) -> list[list[Any]]:
    """Run one stream; returns its events, each with the answer and the statuses after it.

    A stream ends early where both sides refuse a result, or where trials wait for each other for ever in Ray.
    """
    statuses: list[str] = [""]
    trace: list[list[Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of means of infinities
        _play(ours, rays, habits, rng, statuses, trace)
    return trace


def _play(ours: OurSide, rays: Any, habits: Habits, rng: Random, statuses: list[str], trace: list[list[Any]]) -> None:
    for event in events(rng, habits, statuses):
        said = _ask(rays, event, habits)
        if event == ("choose",) and said == "" and rays.is_stuck() and not getattr(rays.scheduler, "is_bohb", False):
            break
        mine = _ask(ours, event, habits)
        if said != mine:
            raise Differs(f"{event}: Ray says {said!r}, ours {mine!r}\n{_tail(trace)}")
        if said == "refused":
            trace.append([*event, said])
            break
        _compare(ours, rays, event, habits, trace)
        statuses[0] = ours.statuses()
        trace.append([*event, mine, statuses[0]])


def _ask(side: Any, event: Event, habits: Habits) -> str:
    name, *arguments = event
    arguments = [dict(one) if isinstance(one, dict) else one for one in arguments]
    if name == "add":
        arguments += [copy.deepcopy(habits.config), copy.deepcopy(habits.shape)]
    try:
        return str(getattr(side, name)(*arguments))
    except (WindlassError, KeyError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(side, OurSide) != isinstance(error, WindlassError):
            raise
        return "refused"


def _compare(ours: OurSide, rays: Any, event: Event, habits: Habits, trace: list[list[Any]]) -> None:
    for what in ("statuses", *(["configs"] if habits.config else []), *(["shapes"] if habits.shape != ONE_CPU else [])):
        said, mine = getattr(rays, what)(), getattr(ours, what)()
        if said != mine:
            raise Differs(f"{event}: {what}\nRay  {said}\nours {mine}\n{_tail(trace)}")


def _tail(trace: list[list[Any]]) -> str:
    return "\n".join(map(str, trace[-60:]))
