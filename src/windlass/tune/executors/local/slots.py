"""The slots of the local executor: each is a worker process, or the place of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.executors.local.reattach import Registration
from windlass.tune.executors.local.resource_pool import ResourceShare
from windlass.tune.executors.protocol import AttemptEnded

__all__ = ["LocalSlot", "LocalSlots"]


@dataclass(slots=True)
class LocalSlot:
    """A worker.

    Attributes:
        running: (trial, attempt) that it runs; None while it is idle.
        variables: of its environment, by which it was made: its GPUs and threads.
        is_single: it serves one trial, and its slot is free when its process has ended.
        is_told_to_end: it was told to halt, or killed by us: its death is no loss.
        stacks: its descriptor of the file for stacks.
        last_words: how its trial ended, told when the process of a single worker is gone.
        registration: of a worker that an earlier head has made.
        watch: descriptor of such a worker's process.
    """

    id: str
    wire: LineConnection
    variables: dict[str, str] = field(default_factory=dict)
    is_single: bool = False
    pid: int = 0
    running: tuple[str, int] | None = None
    share: ResourceShare = field(default_factory=ResourceShare)
    is_told_to_end: bool = False
    stacks: int = -1
    last_words: AttemptEnded | None = None
    registration: Registration | None = None
    watch: int = -1

    @property
    def is_idle(self) -> bool:
        """Whether it may take a trial."""
        is_free = self.running is None and not self.is_single and not self.is_told_to_end
        return is_free and not self.wire.is_closed


class LocalSlots:
    """All workers by slot and by socket."""

    def __init__(self) -> None:
        self._by_id: dict[str, LocalSlot] = {}
        self._by_descriptor: dict[int, LocalSlot] = {}
        self._by_trial: dict[tuple[str, int], LocalSlot] = {}
        self._next = 1
        self._free: list[str] = []

    def __iter__(self) -> Iterator[LocalSlot]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def new_id(self) -> str:
        """A name that no worker has."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return str(self._next - 1)

    def begin_after(self, number: int) -> None:
        """Never use the names up to this one: they belong to workers of an earlier head."""
        self._next = max(self._next, number + 1)

    def add(self, slot: LocalSlot) -> None:
        """A worker was made."""
        self._by_id[slot.id] = slot
        self._by_descriptor[slot.wire.fileno()] = slot

    def remove(self, slot: LocalSlot) -> None:
        """Its process is gone."""
        self.free(slot)
        del self._by_id[slot.id]
        self._free.append(slot.id)

    def forget_socket(self, slot: LocalSlot) -> None:
        """Its socket is about to be closed."""
        self._by_descriptor.pop(slot.wire.fileno(), None)

    def get(self, id_: str) -> LocalSlot | None:
        """The worker of a slot."""
        return self._by_id.get(id_)

    def at(self, descriptor: int) -> LocalSlot | None:
        """The worker of a socket."""
        return self._by_descriptor.get(descriptor)

    def of(self, trial: str, attempt: int) -> LocalSlot | None:
        """Who runs an attempt."""
        return self._by_trial.get((trial, attempt))

    def running(self, trial: str) -> LocalSlot | None:
        """Who runs a trial, whichever attempt."""
        return next((slot for (name, _), slot in self._by_trial.items() if name == trial), None)

    def occupy(self, slot: LocalSlot, trial: str, attempt: int) -> None:
        """The worker runs this attempt now."""
        slot.running = (trial, attempt)
        self._by_trial[slot.running] = slot

    def free(self, slot: LocalSlot) -> None:
        """The worker runs nothing now."""
        if slot.running is not None:
            self._by_trial.pop(slot.running, None)
            slot.running = None

    @property
    def num_running(self) -> int:
        """Attempts that run."""
        return len(self._by_trial)

    def idle(self, variables: dict[str, str]) -> LocalSlot | None:
        """A worker that may take a trial with this environment."""
        return next((slot for slot in self._by_id.values() if slot.is_idle and slot.variables == variables), None)

    def any_idle(self) -> LocalSlot | None:
        """Some idle worker, that which is so the longest first."""
        return next((slot for slot in self._by_id.values() if slot.is_idle), None)
