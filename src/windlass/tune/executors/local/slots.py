"""Slots of the local executor: worker processes, and what their exit statuses mean."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.tune.executors.local.detached import Registration
from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.executors.local.resource_pool import ResourceShare
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome

__all__ = ["LocalSlot", "LocalSlots", "explain"]


@dataclass(slots=True)
class LocalSlot:
    """Worker process that serves a slot.

    Attributes:
        running: (trial, attempt) that it runs; None while it is idle.
        variables: its environment variables, for GPUs and threads.
        is_single: it serves one trial, and its slot becomes free when its process has ended.
        is_ending: it was ordered to halt, or killed by us, so its death is not a loss.
        stacks: its descriptor of the file for stacks.
        last_words: the end of its trial; for a single-use worker, sent when its process is gone.
        registration: registration of a worker that a previous head started.
        watch: process descriptor of such a worker.
    """

    id: str
    wire: LineConnection
    variables: dict[str, str] = field(default_factory=dict)
    is_single: bool = False
    pid: int = 0
    running: tuple[str, int] | None = None
    share: ResourceShare = field(default_factory=ResourceShare)
    is_ending: bool = False
    stacks: int = -1
    last_words: AttemptEnded | None = None
    registration: Registration | None = None
    watch: int = -1

    @property
    def is_idle(self) -> bool:
        """Return whether the slot can take a trial."""
        is_free = self.running is None and not self.is_single and not self.is_ending
        return is_free and not self.wire.is_closed


class LocalSlots:
    """All workers, found by slot or by socket."""

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
        """Return an unused slot name."""
        if self._free:
            return self._free.pop()
        self._next += 1
        return str(self._next - 1)

    def begin_after(self, number: int) -> None:
        """Reserve all names up to this number, because workers of a previous head have them."""
        self._next = max(self._next, number + 1)

    def add(self, slot: LocalSlot) -> None:
        """Add a worker."""
        self._by_id[slot.id] = slot
        self._by_descriptor[slot.wire.fileno()] = slot

    def remove(self, slot: LocalSlot) -> None:
        """Remove a worker whose process has ended."""
        self.free(slot)
        del self._by_id[slot.id]
        self._free.append(slot.id)

    def forget_socket(self, slot: LocalSlot) -> None:
        """Remove a socket that is about to be closed."""
        self._by_descriptor.pop(slot.wire.fileno(), None)

    def get(self, id_: str) -> LocalSlot | None:
        """Return the worker in a slot."""
        return self._by_id.get(id_)

    def at(self, descriptor: int) -> LocalSlot | None:
        """Return the worker connected to a socket."""
        return self._by_descriptor.get(descriptor)

    def of(self, trial: str, attempt: int) -> LocalSlot | None:
        """Return the worker that runs an attempt."""
        return self._by_trial.get((trial, attempt))

    def running(self, trial: str) -> LocalSlot | None:
        """Return the worker that runs any attempt of a trial."""
        return next((slot for (name, _), slot in self._by_trial.items() if name == trial), None)

    def occupy(self, slot: LocalSlot, trial: str, attempt: int) -> None:
        """Assign an attempt to a worker."""
        slot.running = (trial, attempt)
        self._by_trial[slot.running] = slot

    def free(self, slot: LocalSlot) -> None:
        """Mark a worker as idle."""
        if slot.running is not None:
            self._by_trial.pop(slot.running, None)
            slot.running = None

    @property
    def num_running(self) -> int:
        """Return the number of running attempts."""
        return len(self._by_trial)

    def idle(self, variables: dict[str, str]) -> LocalSlot | None:
        """Return an idle worker that has this environment."""
        return next((slot for slot in self._by_id.values() if slot.is_idle and slot.variables == variables), None)

    def any_idle(self) -> LocalSlot | None:
        """Return the worker that has been idle for the longest time."""
        return next((slot for slot in self._by_id.values() if slot.is_idle), None)


_OWN_DOING = {
    signal.SIGSEGV: "a segmentation fault",
    signal.SIGABRT: "an abort",
    signal.SIGBUS: "a bus error",
    signal.SIGFPE: "an arithmetic fault",
    signal.SIGILL: "an illegal instruction",
    signal.SIGSYS: "a forbidden system call",
}


def explain(status: int, *, is_oom: bool = False) -> tuple[AttemptOutcome, str, str]:
    """Return (outcome of the attempt, reason, kind of error if the trial caused it).

    Args:
        status: exit status from wait(2).
        is_oom: whether the kernel killed processes for lack of memory at that time.
    """
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return AttemptOutcome.FAILED, f"the trial's process ended with exit code {code}", "ProcessExit"
    number = os.WTERMSIG(status)
    try:
        known = signal.Signals(number)
    except ValueError:
        return AttemptOutcome.LOST, f"the worker was killed by signal {number}", ""
    if known in _OWN_DOING:
        return AttemptOutcome.FAILED, f"the trial crashed with {_OWN_DOING[known]} ({known.name})", known.name
    if known is signal.SIGKILL and is_oom:
        return AttemptOutcome.LOST, "the worker was killed by the kernel: out of memory (SIGKILL)", ""
    return AttemptOutcome.LOST, f"the worker was killed by {known.name}", ""
