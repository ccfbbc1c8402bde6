"""The slots of the local executor: each is a worker process, or the place of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.tune.executors.local.pool import Share
from windlass.tune.executors.local.reattaching import Registration
from windlass.tune.executors.local.wire import Wire
from windlass.tune.executors.protocol import Ended

__all__ = ["Slot", "Slots"]


@dataclass(slots=True)
class Slot:
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
    wire: Wire
    variables: dict[str, str] = field(default_factory=dict)
    is_single: bool = False
    pid: int = 0
    running: tuple[str, int] | None = None
    share: Share = field(default_factory=Share)
    is_told_to_end: bool = False
    stacks: int = -1
    last_words: Ended | None = None
    registration: Registration | None = None
    watch: int = -1

    @property
    def is_idle(self) -> bool:
        """Whether it may take a trial."""
        is_free = self.running is None and not self.is_single and not self.is_told_to_end
        return is_free and not self.wire.is_closed


class Slots:
    """All workers by slot and by socket."""

    def __init__(self) -> None:
        self._by_id: dict[str, Slot] = {}
        self._by_descriptor: dict[int, Slot] = {}
        self._by_trial: dict[tuple[str, int], Slot] = {}
        self._next = 1
        self._free: list[str] = []

    def __iter__(self) -> Iterator[Slot]:
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

    def add(self, slot: Slot) -> None:
        """A worker was made."""
        self._by_id[slot.id] = slot
        self._by_descriptor[slot.wire.fileno()] = slot

    def remove(self, slot: Slot) -> None:
        """Its process is gone."""
        self.free(slot)
        del self._by_id[slot.id]
        self._free.append(slot.id)

    def forget_socket(self, slot: Slot) -> None:
        """Its socket is about to be closed."""
        self._by_descriptor.pop(slot.wire.fileno(), None)

    def get(self, id_: str) -> Slot | None:
        """The worker of a slot."""
        return self._by_id.get(id_)

    def at(self, descriptor: int) -> Slot | None:
        """The worker of a socket."""
        return self._by_descriptor.get(descriptor)

    def of(self, trial: str, attempt: int) -> Slot | None:
        """Who runs an attempt."""
        return self._by_trial.get((trial, attempt))

    def running(self, trial: str) -> Slot | None:
        """Who runs a trial, whichever attempt."""
        return next((slot for (name, _), slot in self._by_trial.items() if name == trial), None)

    def occupy(self, slot: Slot, trial: str, attempt: int) -> None:
        """The worker runs this attempt now."""
        slot.running = (trial, attempt)
        self._by_trial[slot.running] = slot

    def free(self, slot: Slot) -> None:
        """The worker runs nothing now."""
        if slot.running is not None:
            self._by_trial.pop(slot.running, None)
            slot.running = None

    @property
    def num_running(self) -> int:
        """Attempts that run."""
        return len(self._by_trial)

    def idle(self, variables: dict[str, str]) -> Slot | None:
        """A worker that may take a trial with this environment."""
        return next((slot for slot in self._by_id.values() if slot.is_idle and slot.variables == variables), None)

    def any_idle(self) -> Slot | None:
        """Some idle worker, that which is so the longest first."""
        return next((slot for slot in self._by_id.values() if slot.is_idle), None)
