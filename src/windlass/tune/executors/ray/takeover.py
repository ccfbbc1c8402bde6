"""A new head and the slots of one that is gone: it numbers itself above all before, and every slot obeys the highest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.tune.executors.ray.placing import Placer
from windlass.tune.executors.ray.pool import RaySlotPool
from windlass.tune.executors.ray.slot import RaySlot
from windlass.tune.executors.ray.slot_actor import SlotFacts

__all__ = ["ATTACH_S", "is_replaced", "take_over"]

ATTACH_S = 20.0
"""How long a new head waits for slots to answer; those that do not are ended, as soon as Ray reaches them."""


def take_over(ray: Any, placer: Placer, pool: RaySlotPool, held: Mapping[str, int]) -> list[RaySlot]:
    """Put every slot of use into the pool and end the others; returns those in the pool. Blocks up to twice ATTACH_S.

    Args:
        held: trials that the journal shows as running, with their attempts.
    """
    actors = placer.found()
    known = _ask(ray, {name: actor.facts.remote() for name, actor in actors.items()}, ATTACH_S)
    pool.number = max((facts.number for facts in known.values()), default=0) + 1
    obeying = _ask(ray, {name: actors[name].attach.remote(pool.number) for name in known}, ATTACH_S)
    adopted = []
    for name, actor in actors.items():
        facts = obeying.get(name)
        if facts is not None and (facts.is_over or _is_held(facts, held)):
            adopted.append(pool.adopt(facts, actor, runs=_is_held(facts, held)))
        else:
            placer.remove(actor, known[name].group if name in known else None)
    return adopted


def is_replaced(ray: Any, placer: Placer, pool: RaySlotPool) -> bool:
    """Whether one of the pool's slots obeys another head by now. Blocks up to five seconds."""
    mine = {name: actor.facts.remote() for name, actor in placer.found().items() if name in pool.slots}
    return any(facts.number > pool.number for facts in _ask(ray, mine, 5.0).values())


def _is_held(facts: SlotFacts, held: Mapping[str, int]) -> bool:
    return bool(facts.trial) and held.get(facts.trial) == facts.attempt


def _ask(ray: Any, calls: Mapping[str, Any], timeout_s: float) -> dict[str, SlotFacts]:
    """The answers by name, of those that answer in time."""
    names = {ref: name for name, ref in calls.items()}
    if not names:
        return {}
    ready, _ = ray.wait(list(names), num_returns=len(names), timeout=timeout_s)
    found: dict[str, SlotFacts] = {}
    for ref in ready:
        try:
            facts = ray.get(ref)
        except ray.exceptions.RayError:  # it is gone, which its absence says
            continue
        if facts is not None:
            found[names[ref]] = facts
    return found
