"""What must hold in every history of the simulation of rollouts, checked against the log and what was trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from windlass.post.control.controller import ControllerConfig
from windlass.post.control.messages import Give, UseBatch
from windlass.post.samples.records import DropGroup, PlanGroup, Record, ReserveBatch, Scored

__all__ = ["Choice", "Failure", "Invariants", "row_of"]


class Failure(Exception):
    """An invariant does not hold."""


def row_of(group: int) -> int:
    """Return the prompt of a group."""
    return 7 * group + 3


class Choice:
    """A choice of prompts that depends on what was reserved, as pools of difficulty do.

    Args:
        passes: returns whether a group is passed over, given its number and how many batches were reserved.
        last: no group from this number on is used; None: the prompts never end.
    """

    def __init__(self, passes: Callable[[int, int], bool], last: int | None) -> None:
        self.passes, self.last, self.num_reserved = passes, last, 0

    def next(self, number: int) -> int | None:
        while self.passes(number, self.num_reserved):
            number += 1
        return None if self.last is not None and number >= self.last else number

    def on_reserve(self, groups: tuple[int, ...]) -> None:
        self.num_reserved += 1


class Invariants:
    """A view of the log and of all batches that were handed out.

    Args:
        is_rejected: whether a group's rewards are equal, so that it has to be replaced.
        choice: returns the choice of prompts before anything was reserved.

    Attributes:
        known_version: newest version that a worker reported.
        lengths: of all answers that were trained on.
    """

    def __init__(
        self,
        config: ControllerConfig,
        is_rejected: Callable[[int], bool],
        *,
        has_rejections: bool,
        choice: Callable[[], Choice],
    ) -> None:
        self.config, self.is_rejected, self.has_rejections = config, is_rejected, has_rejections
        self.new_choice = choice
        self.known_version: dict[str, int] = {}
        self.batches: dict[int, tuple[int, ...]] = {}
        self.batch_of: dict[int, int] = {}
        self.lengths: list[int] = []
        self.max_lag = 0
        self.read([])

    def read(self, log: Sequence[Record]) -> None:
        """Derive what the log says from scratch."""
        self.open: dict[int, int] = {}
        self.dropped: set[int] = set()
        self.scored: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.planned: list[int] = []
        self.last_batches: set[int] = set()  # those that no prompt was left for when they were reserved
        self.choice = self.new_choice()
        for record in log:
            self.view(record)

    def view(self, record: Record) -> None:
        match record:
            case PlanGroup():
                wanted = self.choice.next(self.next_group)  # by the records before it alone
                if record.group != wanted or record.row != row_of(record.group):
                    raise Failure(f"group {record.group} is planned, {wanted} is next")
                self.planned.append(record.group)
                self.open[record.group] = record.oldest_version
                if len(self.open) > (self.config.ahead + 1) * self.config.groups_per_batch:
                    raise Failure(f"{len(self.open)} groups are open")
            case Scored():
                members = self.scored[record.id.group]
                if record.id.member in members or record.id.group not in self.open:
                    raise Failure(f"{record.id} is scored twice, or after its group was closed")
                members[record.id.member] = (record.oldest_version, record.length)
            case DropGroup():
                if record.reason != "constant" or not self.is_rejected(record.group):
                    raise Failure(f"group {record.group} is dropped: {record.reason}")
                del self.open[record.group]
                self.dropped.add(record.group)
            case ReserveBatch():
                if self.is_last:
                    self.last_batches.add(record.step // self.config.steps_per_batch)
                self.choice.on_reserve(record.groups)
                for group in record.groups:
                    del self.open[group]
                batch = record.step // self.config.steps_per_batch
                if batch in self.batches and self.batches[batch] != record.groups:
                    raise Failure(f"batch {batch} is reserved again with other groups")

    @property
    def next_group(self) -> int:
        """Number above all groups that are planned."""
        return self.planned[-1] + 1 if self.planned else 0

    @property
    def is_last(self) -> bool:
        """Whether no prompt is left."""
        return self.choice.next(self.next_group) is None

    def check_give(self, command: Give) -> None:
        for claim in command.claims:
            if claim.oldest_version > self.known_version.get(command.worker, -1):
                raise Failure(f"{command.worker} gets {claim}, and its weights are older")
            if claim.id.member in self.scored[claim.id.group]:
                raise Failure(f"{claim.id} is finished and is generated again")

    def check_batch(self, command: UseBatch) -> None:
        batch = command.step // self.config.steps_per_batch
        last_step = (batch + 1) * self.config.steps_per_batch - 1
        if self.batches.setdefault(batch, command.groups) != command.groups:
            raise Failure(f"batch {batch} was {self.batches[batch]} and is {command.groups} now")
        for group in command.groups:
            if self.batch_of.setdefault(group, batch) != batch:
                raise Failure(f"group {group} is in batches {self.batch_of[group]} and {batch}")
            samples = self.scored[group]
            if len(samples) != self.config.group_size:
                raise Failure(f"group {group} is in batch {batch} with {len(samples)} samples")
            lag = last_step - min(oldest for oldest, _ in samples.values())
            self.max_lag = max(self.max_lag, lag)
            if lag > self.config.bound:
                raise Failure(f"lag {lag} in batch {batch}")
        self.check_groups(batch, command.groups)
        self.lengths += [length for group in command.groups for _, length in self.scored[group].values()]

    def check_groups(self, batch: int, groups: tuple[int, ...]) -> None:
        """A batch is full unless groups were rejected beyond the limit; a synchronous one is known in advance."""
        size = self.config.groups_per_batch
        is_full = len(groups) == size or self.has_rejections or batch in self.last_batches
        if not is_full or not 0 < len(groups) <= size:
            raise Failure(f"batch {batch} has {len(groups)} groups")
        if not self.config.slack and (wanted := self.synchronous_batch(batch)) and groups != wanted:
            raise Failure(f"batch {batch} is {groups}, not {wanted}")

    def synchronous_batch(self, batch: int) -> tuple[int, ...]:
        """Return the groups of a batch at bound 0, whatever happened; empty if the limit kept one that is rejected."""
        number, size, limit = 0, self.config.groups_per_batch, self.config.max_replaced
        for _ in range(batch + 1):
            first, groups, num_dropped = number, [], 0
            while number < first + size + min(num_dropped, limit):
                is_rejected = self.is_rejected(number)
                num_dropped += is_rejected
                groups += [] if is_rejected else [number]
                number += 1
        return tuple(groups)

    def check_prompts(self) -> None:
        """Every group that was planned is used once, dropped for a reason, or open."""
        for group in self.planned:
            if (group in self.batch_of) + (group in self.dropped) + (group in self.open) != 1:
                raise Failure(f"group {group} is lost or doubled")
