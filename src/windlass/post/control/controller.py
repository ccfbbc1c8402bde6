"""Controller of rollouts: plans groups, gives samples to workers, and bounds the staleness of every trained token.

Pure: an event goes in, commands come out; no clock, files, threads or random numbers. The learner's process drives it,
stores the commands that are records (`PlanGroup`, `Scored`, `DropGroup`, `ReserveBatch`, `CommitStep`) before it acts on
any other, and can build it again from them. Steps and versions both count finished optimiser steps. The rule that bounds
staleness is in `staleness`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from windlass.post.control.messages import (
    BatchWanted,
    CancelSamples,
    CheckpointCommitted,
    Claim,
    Command,
    Event,
    Give,
    GroupRejected,
    LearnerRestarted,
    Load,
    SampleGenerated,
    SampleScored,
    StopRequested,
    UseBatch,
    Wait,
    WeightsLoaded,
    WeightsPublished,
    WorkerJoined,
    WorkerLeft,
)
from windlass.post.control.staleness import ControllerConfig, DueBatches
from windlass.post.rollout.types import SampleId
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, Record, ReserveBatch, Scored

__all__ = ["ControllerConfig", "RolloutController"]

LEARNER = ""
"""Owner of a sample that is generated and not scored yet: such a sample survives its worker."""


@dataclass(slots=True)
class _Group:
    """A started group that is not reserved."""

    oldest_version: int
    due: int
    attempts: bytearray
    done: bytearray
    num_done: int = 0
    length: int = 0


@dataclass(slots=True)
class _Worker:
    num_slots: int
    version: int
    claims: dict[int, SampleId] = field(default_factory=dict)


class RolloutController:
    """State of all groups that are not committed.

    Args:
        rows: prompt of each group, a pure function of its number.
        choose: returns the first group from a number on that is to be planned; None: no prompt is left. May depend on the
            records so far, and on nothing else.
        on_reserve: called with the groups of a batch before anything is planned after it.

    Attributes:
        counts: events by kind, and tokens that were lost to them.
    """

    def __init__(
        self,
        config: ControllerConfig,
        rows: Callable[[int], int] = int,
        *,
        choose: Callable[[int], int | None] = int,
        on_reserve: Callable[[tuple[int, ...]], object] = tuple,
    ) -> None:
        self._config, self._rows, self._size = config, rows, config.group_size
        self._choose, self.on_reserve = choose, on_reserve
        self.counts: Counter[str] = Counter()
        self._open: dict[int, _Group] = {}
        self._due = DueBatches(config)  # of open groups
        self._complete: list[tuple[int, int]] = []  # (due, group), sorted
        self._pending: list[tuple[int, int]] = []  # heap of (oldest version, sample); claimed ones are removed late
        self._owners: dict[int, str] = {}
        self._workers: dict[str, _Worker] = {}
        self._idle_since_s: dict[str, float] = {}  # of workers with free slots
        self._reserved: dict[int, array[int]] = {}
        self._next_group = self._num_dropped = self._committed = 0
        self._published = -1
        self._wanted: int | None = None
        self._wanted_since_s = 0.0
        self._is_stopping = self._is_released = False
        self._out: list[Command] = []

    @classmethod
    def rebuilt(
        cls,
        config: ControllerConfig,
        records: Iterable[Record],
        *,
        step: int,
        next_group: int = 0,
        rows: Callable[[int], int] = int,
        choose: Callable[[int], int | None] = int,
        on_reserve: Callable[[tuple[int, ...]], object] = tuple,
    ) -> RolloutController:
        """Return the controller of a learner that restarts at a step, after these records.

        Claims are not recorded: a worker that lived on joins again and names what it holds. Groups of `complete` should
        be judged again, for the process may have died between the last sample and a rejection.

        Args:
            records: as they were stored, or those that still count as `SampleLog.records` yields them.
            next_group: number above all groups that were ever planned, if the records do not name all of them.
        """
        self = cls(config, rows, choose=choose, on_reserve=on_reserve)
        self._next_group = next_group
        self._due.next_batch = self._committed = step // config.steps_per_batch
        for record in records:
            if isinstance(record, PlanGroup):
                self._start(record.group, record.oldest_version)
            elif isinstance(record, Scored):
                if self.wants(record.id):
                    self._finish(record.id, record.length)
            elif isinstance(record, ReserveBatch):
                self._take(record.step // config.steps_per_batch, record.groups)
            elif isinstance(record, DropGroup) and record.group in self._open:
                self._remove(record.group)
            elif isinstance(record, DropGroup):  # a log need not keep the plan of a dropped group
                self._num_dropped += 1
        self._published = step
        self._shed()
        return self

    @property
    def complete(self) -> tuple[int, ...]:
        """Return the groups whose samples are all scored and that are not reserved."""
        return tuple(sorted(group for _, group in self._complete))

    @property
    def num_reserved(self) -> int:
        """Return the number of steps whose batches are reserved: versions up to it exist, or are made again."""
        return self._due.next_batch * self._config.steps_per_batch

    @property
    def config(self) -> ControllerConfig:
        """Return its sizes and limits."""
        return self._config

    def wants(self, sample_id: SampleId, oldest_version: int | None = None) -> bool:
        """Return whether this sample's group is open and the sample is not scored yet.

        Args:
            oldest_version: oldest version behind the sample; if given, whether it is young enough too.
        """
        group = self._open.get(sample_id.group)
        is_young = group is not None and (oldest_version is None or oldest_version >= group.oldest_version)
        return group is not None and is_young and not group.done[sample_id.member]

    def handle(self, event: Event, now_s: float) -> list[Command]:  # noqa: C901 - one case an event
        """Change the state and return what to do, in order. Takes microseconds; repeated and late events do no harm.

        Args:
            now_s: any clock that does not go back; only `Wait.since_s` is derived from it.

        Raises:
            ValueError: a batch is wanted that is committed, or whose predecessors are not reserved.
        """
        match event:
            case SampleScored():
                self._on_scored(event)
            case SampleGenerated():
                self._on_generated(event)
            case BatchWanted():
                self._on_wanted(event.step, now_s)
            case WeightsLoaded():
                self._on_loaded(event)
            case WeightsPublished():
                self._on_published(event.version)
            case WorkerJoined():
                self._on_joined(event)
            case WorkerLeft():
                self._on_left(event.worker)
            case GroupRejected():
                self._drop(event.group, event.reason)
            case CheckpointCommitted():
                self._on_committed(event.step)
            case LearnerRestarted():
                self._wanted, self._published = None, event.step
            case StopRequested():
                self._is_stopping = True
        if self._wanted is not None:
            self._reserve()
            if isinstance(event, BatchWanted) and self._wanted is not None:
                self._out.append(self._learner_wait())
        self._give(getattr(event, "worker", None), now_s)
        out, self._out = self._out, []
        return out

    def waits(self) -> list[Wait]:
        """Return who waits for whom, the learner first."""
        waits = [] if self._wanted is None else [self._learner_wait()]
        for name, since_s in self._idle_since_s.items():
            is_old = self._workers[name].version < self._published
            on = () if is_old else ("learner",)
            waits.append(Wait(who=name, what="weights" if is_old else "batch", since_s=since_s, on=on))
        return waits

    def _on_generated(self, event: SampleGenerated) -> None:
        if self._owners.get(self._key(event.id)) == LEARNER:
            self.counts["repeated"] += 1
        elif self._accepts(event):
            self._owners[self._key(event.id)] = LEARNER

    def _on_scored(self, event: SampleScored) -> None:
        if not self._accepts(event):
            return
        self._owners.pop(self._key(event.id), None)
        self._finish(event.id, event.length)
        self._out.append(Scored(id=event.id, oldest_version=event.oldest_version, length=event.length))
        if event.rejected:
            self._drop(event.id.group, event.rejected)

    def _accepts(self, event: SampleScored | SampleGenerated) -> bool:
        """Return whether a sample is wanted and young enough; end its claim, whichever worker holds it.

        Of two attempts the first one that arrives counts. They have the same random numbers, so this favours no length.
        """
        group, key = self._open.get(event.id.group), self._key(event.id)
        if group is None or group.done[event.id.member]:
            self.counts["repeated"] += 1
            return False
        owner = self._owners.get(key)
        if event.oldest_version < group.oldest_version:
            self.counts["refused"] += 1
            self.counts["refused_tokens"] += event.length
            if owner == event.worker and self._workers[owner].claims[key] == event.id:
                del self._workers[owner].claims[key]
                self._give_back([key])
            return False
        if owner is not None and owner != LEARNER:
            del self._owners[key]
            claimed = self._workers[owner].claims.pop(key)
            if owner != event.worker or claimed != event.id:
                self._is_released = True
                self._out.append(CancelSamples(worker=owner, ids=(claimed,)))
        return True

    def _finish(self, sample_id: SampleId, length: int) -> None:
        group = self._open[sample_id.group]
        group.done[sample_id.member] = 1
        group.num_done += 1
        group.length += length
        if group.num_done == self._size:
            insort(self._complete, (group.due, sample_id.group))

    def _give_back(self, keys: Iterable[int]) -> None:
        """Let samples be generated by another worker; what is finished of their groups is kept."""
        for key in sorted(keys):
            self._owners.pop(key, None)
            number, member = divmod(key, self._size)
            group = self._open.get(number)
            if group is None:
                continue  # dropped by the limit of attempts in this loop
            group.attempts[member] += 1
            self.counts["given_back"] += 1
            heappush(self._pending, (group.oldest_version, key))
            if group.attempts[member] >= self._config.max_attempts:
                self._drop(number, "attempts")
        self._is_released = True

    def _start(self, number: int, version: int) -> None:
        """Open a group whose tokens must come from this version or newer ones."""
        size, due = self._size, self._due.batch(version)
        self._open[number] = _Group(version, due, bytearray(size), bytearray(size))
        self._due.add(due)
        self._next_group = max(self._next_group, number + 1)
        for key in range(number * size, (number + 1) * size):
            heappush(self._pending, (version, key))

    def _remove(self, number: int) -> None:
        group = self._open.pop(number)
        self._due.remove(group.due)
        if group.num_done == self._size:
            self._complete.remove((group.due, number))
        self._num_dropped += 1
        self._is_released = True

    def _drop(self, number: int, reason: str) -> None:
        group = self._open.get(number)
        if group is None:
            return
        is_last = self._num_dropped - self._config.max_replaced >= self._config.groups_per_batch - 1
        if is_last and group.num_done == self._size:
            self.counts["kept"] += 1  # a batch has at least one group
            return
        for key in range(number * self._size, (number + 1) * self._size):
            owner = self._owners.pop(key, None)
            if owner in self._workers and (claimed := self._workers[owner].claims.pop(key, None)) is not None:
                self._out.append(CancelSamples(worker=owner, ids=(claimed,)))
        self._remove(number)
        self.counts[f"dropped_{reason}"] += 1
        self.counts["dropped_tokens"] += group.length
        self._out.append(DropGroup(group=number, reason=reason, length=group.length))

    def _shed(self) -> None:
        """Drop open groups that cannot meet a bound that was lowered since they were started."""
        num_dropped, num_kept = self._num_dropped, 0
        for due, number in sorted((group.due, number) for number, group in self._open.items()):
            if num_kept < (due - self._due.next_batch + 1) * self._config.groups_per_batch:
                num_kept += 1
            else:
                self._drop(number, "bound")
        self._num_dropped = num_dropped

    def _may_start(self, version: int) -> bool:
        """Return whether one more group may be open, and weights of this version are new enough for it."""
        limit = self._config.groups_per_batch * (self._config.ahead + 1) - self._num_missing()
        return len(self._open) < limit and self._due.has_room(version)

    def _num_missing(self) -> int:
        """Return by how many groups the next batch is smaller, for they were dropped and not replaced."""
        return min(max(0, self._num_dropped - self._config.max_replaced), self._config.groups_per_batch - 1)

    def _on_wanted(self, step: int, now_s: float) -> None:
        batch = step // self._config.steps_per_batch
        if batch > self._due.next_batch or (batch < self._due.next_batch and batch not in self._reserved):
            kept = f"{min(self._reserved, default=self._due.next_batch)} to {self._due.next_batch}"
            raise ValueError(f"the batch of step {step} is number {batch}; there are {kept}")
        if batch < self._due.next_batch:
            self._wanted = None
            self._out.append(UseBatch(step=step, groups=tuple(self._reserved[batch])))
        elif self._wanted is None:
            self._wanted, self._wanted_since_s = step, now_s

    def _reserve(self) -> None:
        """Reserve the wanted batch: complete groups by due batch, if all that must be among them are.

        If no prompt is left, the batch has all groups, and the one after that none.
        """
        if self._wanted is None:
            return
        size = self._config.groups_per_batch - self._num_missing()
        if len(self._complete) < size:
            if len(self._complete) < len(self._open) or self._choose(self._next_group) is not None:
                return
            size = len(self._complete)
        if not size:
            step, self._wanted = self._wanted, None
            self._out.append(UseBatch(step=step, groups=()))
            return
        needed = self._due.needed()
        taken = self._complete[: max(size, *needed.values())]
        if any(bisect_right(taken, (due + 1, -1)) < least for due, least in needed.items()):
            return  # a group is late that no later batch has room for
        groups = tuple(sorted(group for _, group in taken))
        step, self._wanted = self._wanted, None
        start = step - step % self._config.steps_per_batch
        self._take(self._due.next_batch, groups)
        self.on_reserve(groups)
        self._out += [ReserveBatch(step=start, groups=groups), UseBatch(step=step, groups=groups)]

    def _take(self, batch: int, groups: tuple[int, ...]) -> None:
        for group in groups:
            if group in self._open:
                self._remove(group)
            self._next_group = max(self._next_group, group + 1)
        self._num_dropped = 0
        self._due.next_batch = max(self._due.next_batch, batch + 1)
        if batch >= self._committed:
            self._reserved[batch] = array("q", groups)

    def _on_committed(self, step: int) -> None:
        batch = step // self._config.steps_per_batch
        if batch < self._committed:
            return  # a late message
        for old in range(self._committed, batch):
            self._reserved.pop(old, None)
        self._committed = max(self._committed, batch)
        self._out.append(CommitStep(step=step))

    def _learner_wait(self) -> Wait:
        num_missing = max(1, self._config.groups_per_batch - len(self._complete))
        late = sorted((group.due, number) for number, group in self._open.items() if not all(group.done))[:num_missing]
        groups = tuple(number for _, number in late)
        size = self._size
        keys = (key for number in groups for key in range(number * size, (number + 1) * size))
        on = tuple(sorted({self._owners[key] or "learner" for key in keys if key in self._owners}))
        return Wait(who="learner", what="samples", since_s=self._wanted_since_s, on=on, groups=groups)

    def _on_joined(self, event: WorkerJoined) -> None:
        before = self._workers.get(event.worker)
        worker = _Worker(event.num_slots, -1 if event.version is None else event.version)
        self._workers[event.worker] = worker
        unwanted = []
        for sample_id in event.holds:
            key = self._key(sample_id)
            if self.wants(sample_id) and self._owners.get(key, event.worker) == event.worker:
                self._owners[key] = event.worker
                worker.claims[key] = sample_id
                attempts = self._open[sample_id.group].attempts
                attempts[sample_id.member] = max(attempts[sample_id.member], sample_id.attempt)
            else:
                unwanted.append(sample_id)
        if unwanted:
            self._out.append(CancelSamples(worker=event.worker, ids=tuple(unwanted)))
        self._give_back(before.claims.keys() - worker.claims.keys() if before else ())
        self._ask_to_load(event.worker)

    def _on_left(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            self._idle_since_s.pop(name, None)
            self._give_back(worker.claims)

    def _on_loaded(self, event: WeightsLoaded) -> None:
        worker = self._workers.get(event.worker)
        if worker is not None:
            worker.version = max(worker.version, event.version)
            self._is_released = True

    def _on_published(self, version: int) -> None:
        self._published = version
        for name in self._workers:
            self._ask_to_load(name)

    def _ask_to_load(self, name: str) -> None:
        if self._workers[name].version < self._published:
            self._out.append(Load(worker=name, version=self._published))

    def _give(self, name: str | None, now_s: float) -> None:
        """Fill the free slots of a worker, or of all if something was released that any of them can use."""
        if name in self._workers:
            self._fill(name, now_s)
        if self._is_released:
            self._is_released = False
            for each in self._workers:
                self._fill(each, now_s)

    def _fill(self, name: str, now_s: float) -> None:
        worker = self._workers[name]
        claims: list[Claim] = []
        while len(worker.claims) < worker.num_slots and (key := self._next_sample(worker.version)) is not None:
            number, member = divmod(key, self._size)
            group = self._open[number]
            sample_id = SampleId(group=number, member=member, attempt=group.attempts[member])
            worker.claims[key] = sample_id
            self._owners[key] = name
            claims.append(Claim(id=sample_id, oldest_version=group.oldest_version))
        if claims:
            self._out.append(Give(worker=name, claims=tuple(claims)))
        if len(worker.claims) < worker.num_slots:
            self._idle_since_s.setdefault(name, now_s)
        else:
            self._idle_since_s.pop(name, None)

    def _next_sample(self, version: int) -> int | None:
        """Return a sample that weights of this version can start; of the oldest group first, then of a new one."""
        if self._is_stopping:
            return None
        while True:
            while self._pending:
                oldest, key = self._pending[0]
                number, member = divmod(key, self._size)
                group = self._open.get(number)
                if group is not None and not group.done[member] and key not in self._owners:
                    break
                heappop(self._pending)
            if self._pending and oldest <= version:
                return heappop(self._pending)[1]
            if version < 0 or not self._may_start(version):
                return None
            if (chosen := self._choose(self._next_group)) is None:
                return None
            self._out.append(PlanGroup(group=chosen, row=self._rows(chosen), oldest_version=version))
            self._start(chosen, version)
            self._is_released = True  # others with free slots can generate members of the new group

    def _key(self, sample_id: SampleId) -> int:
        return sample_id.group * self._size + sample_id.member
