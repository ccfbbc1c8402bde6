"""Mutants of the controller of rollouts, by name; the simulation must catch each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from windlass.post.control.controller import RolloutController
from windlass.post.control.staleness import DueBatches
from windlass.post.samples.records import DropGroup, PlanGroup, ReserveBatch, Scored

__all__ = ["CAUGHT_AT", "MUTANTS", "mutated"]

Change = tuple[str, Any]
ORIGINAL = {owner: dict(vars(owner)) for owner in (RolloutController, DueBatches)}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run with the mutant of this name in place of the shipped controller."""
    changes = [
        (owner, attribute, replacement)
        for attribute, replacement in MUTANTS[name].items()
        for owner in ORIGINAL
        if attribute in ORIGINAL[owner]
    ]
    for owner, attribute, replacement in changes:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, _ in changes:
            setattr(owner, attribute, ORIGINAL[owner][attribute])


def _bound_plus_one(self: Any, version: int) -> int:
    return int(ORIGINAL[DueBatches]["batch"](self, version)) + 1


def _without_mini_batches(self: Any, version: int) -> int:
    return int((version + self._config.bound) // self._config.steps_per_batch)


def _start_without_limit(self: Any, version: int) -> bool:
    """`ahead` is ignored."""
    return bool(self._due.has_room(version))


def _room_not_checked(self: Any, version: int) -> bool:
    """Groups are started although those that are open need all batches until they are due."""
    return bool(self.batch(version) >= self.next_batch)


def _always_room(self: Any, version: int) -> bool:
    """Work that can no longer meet the bound is started."""
    return True


def _claims_kept(self: Any, keys: Any) -> None:
    """Claims of a dead worker are not given back."""
    for key in keys:
        self._owners.pop(key, None)


def _group_begun_again(self: Any, keys: Any) -> None:
    """A death costs the finished members of its groups too."""
    numbers = {key // self._config.group_size for key in keys}
    for number in numbers & set(self._open):
        group = self._open[number]
        size = self._config.group_size
        if 0 < group.num_done < size:
            keys = [*keys, *(number * size + member for member in range(size) if group.done[member])]
            group.done, group.num_done = bytearray(size), 0
    ORIGINAL[RolloutController]["_give_back"](self, keys)


def _reserved_again(self: Any, step: int, now_s: float) -> None:
    """A batch that is wanted again is made anew."""
    if self._wanted is None:
        self._wanted, self._wanted_since_s = step, now_s


def _due_dropped(self: Any) -> None:
    """Groups that are late are dropped rather than waited for."""
    if self._wanted is not None:
        for number, group in list(self._open.items()):
            if group.due <= self._due.next_batch and group.num_done < self._config.group_size:
                self._drop(number, "late")
    ORIGINAL[RolloutController]["_reserve"](self)


def _nothing_needed(self: Any) -> dict[int, int]:
    """A batch is whatever is complete, although later batches have no room for the groups that are late."""
    return {0: 0}


def _old_reads_ignored(self: Any, event: Any) -> bool:
    """The version that a sample was started with counts, not the oldest one that it read."""
    young = replace(event, oldest_version=10**9)
    return bool(ORIGINAL[RolloutController]["_accepts"](self, young))


def _repeated_counted(self: Any, event: Any) -> bool:
    """A sample that arrives twice counts twice."""
    if event.id.group in self._open and self._open[event.id.group].done[event.id.member]:
        return True
    return bool(ORIGINAL[RolloutController]["_accepts"](self, event))


def _late_refused(self: Any, event: Any) -> bool:
    """A sample that a worker finished before it was given up is thrown away, and its slot stays occupied."""
    owner = self._owners.get(self._key(event.id))
    return owner == event.worker and bool(ORIGINAL[RolloutController]["_accepts"](self, event))


def _permit_lost(self: Any, number: int) -> None:
    """A group that leaves still counts as one that is due."""
    due = self._open[number].due
    ORIGINAL[RolloutController]["_remove"](self, number)
    if number % 5 == 0:
        self._due.add(due + 1)


def _older_workers_used(self: Any, version: int) -> int | None:
    """Members of a group are given to workers whose weights are older than the group's."""
    return ORIGINAL[RolloutController]["_next_sample"](self, version if version < 0 else self._published)  # type: ignore[no-any-return]


def _replaced_for_ever(self: Any) -> int:
    """The limit of replaced groups is ignored."""
    return 0


def _forgotten_at_restart(*kinds: type) -> Mapping[str, Any]:
    """A rebuilt controller does not read records of these kinds."""

    def rebuilt(cls: Any, /, config: Any, records: Any, **rest: Any) -> Any:
        kept = [record for record in records if not isinstance(record, kinds)]
        return ORIGINAL[RolloutController]["rebuilt"].__func__(cls, config, kept, **rest)

    return {"rebuilt": classmethod(rebuilt)}


def _younger_at_restart() -> Mapping[str, Any]:
    """A rebuilt controller takes open groups for new ones, with the weights of the checkpoint."""

    def rebuilt(cls: Any, /, config: Any, records: Any, *, step: int, **rest: Any) -> Any:
        old = [replace(each, oldest_version=step) if isinstance(each, PlanGroup) else each for each in records]
        return ORIGINAL[RolloutController]["rebuilt"].__func__(cls, config, old, step=step, **rest)

    return {"rebuilt": classmethod(rebuilt)}


def _all_committed(self: Any, step: int) -> None:
    """A checkpoint frees batches that come after it."""
    ORIGINAL[RolloutController]["_on_committed"](self, step)
    self._reserved.clear()


def _choice_not_told(self: Any) -> None:
    """Groups are planned by the visits before the last batch."""
    told, self.on_reserve = self.on_reserve, tuple
    ORIGINAL[RolloutController]["_reserve"](self)
    self.on_reserve = told


def _last_batch_waits(self: Any) -> None:
    """A batch that cannot be filled any more is waited for."""
    chosen, self._choose = self._choose, int
    ORIGINAL[RolloutController]["_reserve"](self)
    self._choose = chosen


MUTANTS: Mapping[str, Mapping[str, Any]] = {
    "bound-plus-one": {"batch": _bound_plus_one},
    "mini-batches-not-counted": {"batch": _without_mini_batches},
    "ahead-ignored": {"_may_start": _start_without_limit},
    "started-without-room": {"has_room": _room_not_checked},
    "started-too-late": {"has_room": _always_room},
    "claims-not-returned": {"_give_back": _claims_kept},
    "finished-lost-with-a-worker": {"_give_back": _group_begun_again},
    "reservation-not-repeated": {"_on_wanted": _reserved_again},
    "reservation-freed-early": {"_on_committed": _all_committed},
    "due-groups-dropped": {"_reserve": _due_dropped},
    "due-groups-not-waited-for": {"needed": _nothing_needed},
    "oldest-read-ignored": {"_accepts": _old_reads_ignored},
    "repeated-samples-counted": {"_accepts": _repeated_counted},
    "late-samples-thrown-away": {"_accepts": _late_refused},
    "permit-not-given-back": {"_remove": _permit_lost},
    "older-workers-used": {"_next_sample": _older_workers_used},
    "limit-of-replacement-ignored": {"_num_missing": _replaced_for_ever},
    "choice-not-told": {"_reserve": _choice_not_told},
    "last-batch-waited-for": {"_reserve": _last_batch_waits},
    "plans-forgotten": _forgotten_at_restart(PlanGroup),
    "samples-forgotten": _forgotten_at_restart(Scored),
    "reservations-forgotten": _forgotten_at_restart(ReserveBatch),
    "drops-forgotten": _forgotten_at_restart(DropGroup),
    "versions-forgotten": _younger_at_restart(),
}
"""Replaced attributes of the controller, or of its bound, by mutant."""

CAUGHT_AT: Mapping[str, int] = {
    "reservation-freed-early": 27,
    "drops-forgotten": 21,
    "limit-of-replacement-ignored": 12,
}
"""Seeds that caught a mutant when last measured, where it was not seed 0."""
