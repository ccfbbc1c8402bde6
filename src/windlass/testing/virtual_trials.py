"""Trials on a virtual clock: learning curves that take time, on nodes that come and go.

One or more executors see the same trials.

A `VirtualWorld` outlives its heads, as a site does; `VirtualExecutor` is one head's view of it. Every event has a
time and a number, so runs are deterministic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Protocol

from windlass.core.clock import FakeClock
from windlass.core.dataclass import dataclass
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    Fit,
    Halt,
    Order,
    Room,
    SlotJoined,
    SlotLost,
    SlotNoticed,
    StartAttempt,
    Work,
)
from windlass.tune.trial import Metrics, Resources

__all__ = ["Curve", "VirtualExecutor", "VirtualTrialError", "VirtualWorld"]


class VirtualTrialError(Exception):
    """Exception raised by a curve to make its trial fail."""


class Curve(Protocol):
    """Behaviour of trials. Pure: equal arguments give equal results."""

    def duration_s(self, config: Mapping[str, Any], iteration: int) -> float:
        """Return how many seconds an iteration takes."""

    def step(self, state: float, config: Mapping[str, Any], iteration: int) -> tuple[float, Metrics]:
        """Return the state and the report after an iteration; `done` in the report ends the trial.

        Raises:
            VirtualTrialError: the trial fails.
        """


@dataclass(slots=True)
class _Attempt:
    trial: str
    number: int
    config: dict[str, Any]
    slot: str
    iteration: int
    state: float
    upto: int
    seconds: float
    is_over: bool = False
    is_blocked: bool = False
    turn: int = 0
    said: list[tuple[int, Event]] = field(default_factory=list)


class VirtualWorld:
    """Simulated slots with their trials, and the checkpoints that these wrote.

    Args:
        slots: names of the initial slots; the part before `/` is the node.
        checkpoint_every: iterations between automatic checkpoints; 0 to save only on request.
        outlives_heads: whether trials continue when their head dies, and spool their events.
        start_s: seconds that starting a trial takes.

    Attributes:
        acknowledged: (trial, attempt, iteration) of every acknowledged report.
        starts: all starts so far.
        leaving: slots whose node is about to be taken away.
    """

    def __init__(
        self,
        curve: Curve,
        slots: Iterable[str],
        *,
        clock: FakeClock | None = None,
        checkpoint_every: int = 0,
        outlives_heads: bool = True,
        start_s: float = 0.5,
    ) -> None:
        self.clock = clock or FakeClock()
        self.curve = curve
        self.slots: dict[str, _Attempt | None] = dict.fromkeys(slots)
        self.leaving: set[str] = set()
        self.checkpoints: dict[str, tuple[int, float]] = {}
        self.acknowledged: set[tuple[str, int, int]] = set()
        self.starts: list[StartAttempt] = []
        self.head: VirtualExecutor | None = None
        self.outlives_heads = outlives_heads
        self._checkpoint_every = checkpoint_every
        self._start_s = start_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._num = 0
        self._attempts: dict[tuple[str, int], _Attempt] = {}

    # -------------------------------------------------------------------------------------------------------- time

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Schedule an event, such as the loss of a node, in `seconds`."""
        self._num += 1
        heapq.heappush(self._due, (self.clock.monotonic() + seconds, self._num, act))

    def next_at(self) -> float | None:
        """Return the monotonic time of the next event."""
        return self._due[0][0] if self._due else None

    def advance(self, until: float) -> None:
        """Run all events up to a monotonic time."""
        while self._due and self._due[0][0] <= until:
            at, _, act = heapq.heappop(self._due)
            self.clock.advance(max(0.0, at - self.clock.monotonic()))
            act()
        self.clock.advance(max(0.0, until - self.clock.monotonic()))

    def _tell(self, event: Event, attempt: _Attempt | None = None) -> None:
        self._num += 1
        if attempt is not None:
            attempt.said.append((self._num, event))
        if self.head is not None:
            self.head.inbox.append(event)

    # ------------------------------------------------------------------------------------------------------- slots

    def join(self, *slots: str) -> None:
        """Add slots, each named `NODE/NUMBER`."""
        for slot in slots:
            if slot not in self.slots:
                self.slots[slot] = None
                self._tell(SlotJoined(slot=slot, host=slot.split("/")[0]))

    def lose(self, node: str, why: str = "its node is gone") -> None:
        """Remove all slots of a node and end their trials."""
        for slot in [name for name in self.slots if name.split("/")[0] == node]:
            attempt = self.slots.pop(slot)
            self.leaving.discard(slot)
            self._tell(SlotLost(slot=slot, why=why))
            if attempt is not None:
                self._end(attempt, AttemptOutcome.LOST, why)

    def notice(self, node: str, notice_s: float, why: str = "its node is taken away") -> None:
        """Announce that a node is taken away in `notice_s`, after which its slots are lost."""
        at = self.clock.now() + notice_s
        for slot, attempt in self.slots.items():
            if slot.split("/")[0] == node:
                self.leaving.add(slot)
                running = {} if attempt is None else {"trial": attempt.trial, "attempt": attempt.number}
                noticed = SlotNoticed(slot=slot, host=node, gone_at=at, why=why, **running)  # type: ignore[arg-type]
                self._tell(noticed, attempt)
        self.at(notice_s, lambda: self._take_away(node))

    def _take_away(self, node: str) -> None:
        """Lose a node that had a notice, unless it went before and another of its name has come."""
        if any(slot.split("/")[0] == node for slot in self.leaving):
            self.lose(node)

    def lose_worker(self, slot: str) -> None:
        """Kill the worker of a slot; the slot gets a new one."""
        attempt = self.slots.get(slot)
        if attempt is not None:
            self._end(attempt, AttemptOutcome.LOST, "its worker died")

    def kill_head(self) -> None:
        """Kill the head without notice.

        Events that it had not received are spooled, or lost with the workers.
        """
        if self.head is not None:
            self.head.inbox.clear()
            self.head.is_cut = True
            self.head = None
        if not self.outlives_heads:
            for attempt in [found for found in self.slots.values() if found is not None]:
                self._end(attempt, AttemptOutcome.LOST, "its head is gone")

    # ------------------------------------------------------------------------------------------------------- trials

    def begin(self, start: StartAttempt) -> None:
        """Start an attempt in a free slot."""
        slot = self.free_slots()[0]
        state = self.checkpoints[start.restore_from][1] if start.restore_from else 0.0
        attempt = _Attempt(
            start.trial,
            start.attempt,
            start.config,
            slot,
            start.iteration,
            state,
            start.iteration + start.credit,
            start.time_total_s,
        )
        self.starts.append(start)
        self.slots[slot] = attempt
        self._attempts[start.trial, start.attempt] = attempt
        node = slot.split("/")[0]
        self._tell(AttemptStarted(trial=start.trial, attempt=start.attempt, slot=slot, host=node, pid=1), attempt)
        self._plan(attempt, self._start_s)

    def free_slots(self) -> list[str]:
        """Return the slots in which an attempt may start."""
        return [name for name, attempt in self.slots.items() if attempt is None and name not in self.leaving]

    def _plan(self, attempt: _Attempt, wait_s: float) -> None:
        """Schedule the end of the next iteration."""
        attempt.turn += 1
        turn = attempt.turn
        seconds = self.curve.duration_s(attempt.config, attempt.iteration + 1)
        attempt.is_blocked = False

        def step() -> None:
            if not attempt.is_over and attempt.turn == turn:
                self._step(attempt, seconds)

        self.at(wait_s + seconds, step)

    def _step(self, attempt: _Attempt, seconds: float) -> None:
        try:
            attempt.state, metrics = self.curve.step(attempt.state, attempt.config, attempt.iteration + 1)
        except VirtualTrialError as error:
            self._end(attempt, AttemptOutcome.FAILED, f"Traceback\nVirtualTrialError: {error}", "VirtualTrialError")
            return
        attempt.iteration += 1
        attempt.seconds += seconds
        metrics = {**metrics, "training_iteration": attempt.iteration, "time_total_s": attempt.seconds}
        is_due = self._checkpoint_every and attempt.iteration % self._checkpoint_every == 0
        saved = self._save(attempt) if is_due else ""
        self._tell(AttemptReported(trial=attempt.trial, attempt=attempt.number, metrics=metrics, saved=saved), attempt)
        if metrics.get("done"):
            self._end(attempt, AttemptOutcome.DONE)
        elif attempt.iteration < attempt.upto:
            self._plan(attempt, 0.0)
        else:
            attempt.is_blocked = True

    def _save(self, attempt: _Attempt) -> str:
        path = f"virtual/{attempt.trial}/{attempt.iteration:06d}-{attempt.number}"
        self.checkpoints[path] = (attempt.iteration, attempt.state)
        return path

    def _end(self, attempt: _Attempt, how: AttemptOutcome, error: str = "", kind: str = "") -> None:
        attempt.is_over = True
        if self.slots.get(attempt.slot) is attempt:
            self.slots[attempt.slot] = None
        ended = AttemptEnded(trial=attempt.trial, attempt=attempt.number, how=how, error=error, kind=kind)
        self._tell(ended, attempt)

    def order(self, order: Order) -> None:
        """Send a command to an attempt."""
        attempt = self._attempts.get((order.trial, order.attempt))
        if attempt is None or attempt.is_over:
            return
        self.acknowledged.add((order.trial, order.attempt, attempt.iteration))
        if order.saves:
            path = self._save(attempt)
            saved = AttemptSaved(trial=order.trial, attempt=order.attempt, iteration=attempt.iteration, path=path)
            self._tell(saved, attempt)
        if isinstance(order, Halt):
            self._end(attempt, AttemptOutcome.HALTED)
            return
        attempt.upto = max(attempt.upto, order.upto)
        if attempt.is_blocked and attempt.iteration < attempt.upto:
            self._plan(attempt, 0.0)

    def spools(self, running: Mapping[str, int]) -> dict[str, list[tuple[int, Event]]]:
        """Return the events that attempts have spooled since they started."""
        found = {trial: self._attempts.get((trial, number)) for trial, number in running.items()}
        return {trial: attempt.said for trial, attempt in found.items() if attempt is not None}


class VirtualExecutor:
    """Executor for one head of a virtual world. `poll` moves the clock to the next event."""

    name: ClassVar[str] = "virtual"

    def __init__(self, world: VirtualWorld) -> None:
        self.world = world
        self.inbox: list[Event] = []
        self.is_cut = False

    def open(self, work: Work) -> None:
        """Make this executor the head of the world."""
        del work
        self.world.head = self

    def capacity(self) -> Mapping[str, float]:
        """Return one CPU for each slot."""
        return {"CPU": float(len(self.world.slots) - len(self.world.leaving))}

    def room(self, resources: Resources) -> Room:
        """Return whether a trial fits; it uses one slot and up to eight CPUs."""
        if resources.total.get("CPU", 0.0) > 8.0:
            return Room(Fit.NEVER, "slots have 8 CPUs")
        num_free = len(self.world.free_slots())
        if num_free > sum(isinstance(event, AttemptEnded) for event in self.inbox):
            return Room(Fit.NOW)
        return Room(Fit.LATER, f"all {len(self.world.slots)} slots are taken")

    def start(self, start: StartAttempt) -> None:
        """Start an attempt."""
        if not self.is_cut:
            self.world.begin(start)

    def send(self, order: Order) -> None:
        """Send a command to an attempt."""
        if not self.is_cut:
            self.world.order(order)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return new events, after moving the clock to the next one, by at most `timeout_s`."""
        until = self.world.clock.monotonic() + timeout_s
        while not self.inbox:
            following = self.world.next_at()
            if following is None or following > until:
                self.world.advance(until)
                break
            self.world.advance(following)
        events, self.inbox = self.inbox, []
        return events

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Take over the attempts that an earlier head started, with all their events."""
        if not self.world.outlives_heads:
            return {}
        spools = self.world.spools(running)
        self.inbox = [event for _, event in sorted((said for log in spools.values() for said in log), key=_number)]
        return {trial: running[trial] for trial in spools}

    def detach(self) -> None:
        """Leave all attempts running."""
        if self.world.head is self:
            self.world.head = None

    def close(self) -> None:
        """End every attempt; not called for a head that was killed."""
        if not self.is_cut:
            for attempt in [found for found in self.world.slots.values() if found is not None]:
                attempt.is_over = True
                self.world.slots[attempt.slot] = None


def _number(said: tuple[int, Event]) -> int:
    return said[0]
