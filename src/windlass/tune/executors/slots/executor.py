"""Many small trials on a site: slots are windlass runs whose workers pull trials, one scheduler job per slot.

Slots are preempted, chained and started again by windlass's own machinery; a worker that comes back is a new life of
its slot, and the attempt that the old life had is lost. Workers outlive their head: they go on within their credit,
what they say stays in their spools, and the next head reads those from the beginning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from windlass.core.clock import SystemClock
from windlass.core.errors import UnreachableError, WindlassError
from windlass.core.files import write_json
from windlass.core.phrases import count
from windlass.launch import Prepared, control
from windlass.record.frames import Record
from windlass.record.journal import JournalReader, read_journal
from windlass.runs.home import Home
from windlass.tune.executors.channel import BadMessageError, Leave, Message, from_message, to_message
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Fit,
    Halt,
    Order,
    Room,
    SlotJoined,
    SlotLost,
    StartAttempt,
    Work,
)
from windlass.tune.executors.runs.needs import needed
from windlass.tune.executors.runs.trial_template import ensure_blueprint
from windlass.tune.executors.slots.files import HELLO, MESSAGE, ORDER, SlotFiles, is_newer, split_writer
from windlass.tune.executors.slots.slot import RunSlot
from windlass.tune.executors.slots.slot_runs import SlotRuns, end_with, last_words
from windlass.tune.executors.work_data import work_to_data
from windlass.tune.trial import Resources

__all__ = ["SlotsExecutor"]

_LOOK_S = 0.02
_LATE_S = 0.2
_FRESH_EVERY_S = 2.0
_KEEP_EVERY_S = 5.0
_SILENT_S = 150.0
"""A worker shows every 15 s that it lives; windlass itself lets a shared file system stall for two minutes."""
_LEAVE_S = 8.0
"""A worker that is idle has left by then, and its run has succeeded."""


class SlotsExecutor:
    """Trials in workers that are windlass runs.

    Args:
        home: where runs live; the default one.
        prepared: the experiment, for a sweep that was not declared in its file: `windlass.load("exp.yaml")`.
        log: gets progress lines of launches.
    """

    name: ClassVar[str] = "slots"

    def __init__(
        self,
        *,
        home: Home | None = None,
        log: Callable[[str], None] = lambda line: None,
        prepared: Prepared | None = None,
    ) -> None:
        self._home = home or Home.default()
        self._log = log
        self._prepared = prepared
        self._clock = SystemClock()
        self._head = f"head-{os.uname().nodename}-{os.getpid()}-{time.time_ns():x}"
        self._slots: dict[str, RunSlot] = {}
        self._said: list[Event] = []
        self._never = ""
        self._fresh_at = 0.0
        self._keep_at = 0.0
        self._next_kept = 0

    # --- the protocol

    def open(self, work: Work) -> None:
        """Launch the slots that are not there yet, all together; blocks until their jobs are made.

        Raises:
            WindlassError: the trainable cannot be sent, the experiment cannot be a slot, or the place refuses it.
        """
        self._places = SlotFiles(Path(work.folder))
        self._blueprint = ensure_blueprint(Path(work.folder), self._prepared, work.name)
        self._crew = SlotRuns(self._blueprint, self._places, self._home, self._log)
        self._has = needed(self._blueprint.plan)
        write_json(self._places.work, work_to_data(work))
        self._places.spools.mkdir(parents=True, exist_ok=True)
        self._reader = JournalReader(self._places.spools)
        number = work.num_slots or 1
        self._add([self._crew.newest(f"{index:03d}") for index in range(number)])

    def room(self, resources: Resources) -> Room:
        """Room where a slot is idle; never where a slot is too small, or none can live."""
        if self._never:
            return Room(Fit.NEVER, self._never)
        for name, amount in resources.total.items():
            if amount > self._has.get(name, 0.0):
                return Room(Fit.NEVER, f"a trial wants {amount:g} {name}, and a slot has {self._has.get(name, 0):g}")
        if any(slot.is_idle for slot in self._slots.values()):
            return Room(Fit.NOW)
        num_up = sum(1 for slot in self._slots.values() if slot.incarnation and not slot.is_gone)
        return Room(Fit.LATER, f"{num_up} of {count(len(self._slots), 'slot')} up, none idle")

    def start(self, start: StartAttempt) -> None:
        """Give an attempt to an idle slot."""
        slot = next(slot for slot in self._slots.values() if slot.is_idle)
        slot.trial, slot.attempt = start.trial, start.attempt
        self._tell(slot, to_message(start))

    def send(self, order: Order) -> None:
        """Tell the slot that has the attempt."""
        for slot in self._slots.values():
            if (slot.trial, slot.attempt) == (order.trial, order.attempt) and not slot.is_gone:
                self._tell(slot, to_message(order))

    def poll(self, timeout_s: float) -> list[Event]:
        """Hear the spools, and look after the runs."""
        deadline, pause_s = time.monotonic() + timeout_s, _LOOK_S
        while True:
            found, self._said = self._said, []
            found += self._hear()
            found += self._keep()
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.3, _LATE_S)

    def close(self) -> None:
        """Send idle workers home, and end all others at once; blocks until their runs are over."""
        slots, self._slots = list(self._slots.values()), {}
        leaving = [slot for slot in slots if slot.is_idle]
        for slot in leaving:
            self._tell(slot, Leave)
        deadline = time.monotonic() + _LEAVE_S
        for slot in slots:
            while slot in leaving and not slot.run.state.is_terminal and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            with suppress(WindlassError):
                control.kill(slot.run.folder, self._home)
            slot.close()

    def detach(self) -> None:
        """Leave the slots to the next head."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    def waiting_for(self) -> str:
        """Why slots are not up, as their place says it."""
        waiting = [slot for slot in self._slots.values() if not slot.incarnation and not slot.is_gone]
        reasons = [task.reason for slot in waiting for task in slot.run.facts.tasks.values() if task.reason]
        return f"{len(waiting)} of {count(len(self._slots), 'slot')} not up: {reasons[0]}" if reasons else ""

    # --- another head's slots

    def reattach(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Read all spools and orders from the beginning; what the attempts said comes by the next `poll`."""
        records = self._reader.poll(is_fresh=True)
        for record in records:
            if record.kind == HELLO:
                self._greet(record)
        self._said = [event for event in self._said if not isinstance(event, SlotJoined)]
        said: dict[tuple[str, int], list[Event]] = {}
        owner: dict[tuple[str, int], RunSlot] = {}
        for slot in self._slots.values():
            for start in self._ordered(slot):
                owner[start.trial, start.attempt] = slot
        for record in records:
            slot_of = self._slots.get(split_writer(record.writer)[0])
            if record.kind == MESSAGE and slot_of is not None:
                event = self._event(record, slot_of)
                if event is not None:
                    said.setdefault((event.trial, event.attempt), []).append(event)
        found = {}
        for trial, attempt in held.items():
            key = (trial, attempt)
            events = said.get(key, [])
            has_ended = bool(events) and isinstance(events[-1], AttemptEnded)
            if not has_ended and key not in owner:
                continue
            if not has_ended:
                owner[key].trial, owner[key].attempt = trial, attempt
            self._said += events
            found[trial] = attempt
        self._said += [SlotJoined(slot=slot.name, host=slot.host) for slot in self._slots.values() if slot.incarnation]
        return found

    def _ordered(self, slot: RunSlot) -> list[StartAttempt]:
        """What heads told the life of a slot that counts now to start."""
        records = read_journal(self._places.orders(slot.name)) if slot.incarnation else []
        messages = [
            record.data.get("message")
            for record in records
            if record.kind == ORDER and record.data.get("to") == slot.incarnation
        ]
        return [from_message(message) for message in messages if _is_a(message, "start")]

    # --- what workers say

    def _hear(self) -> list[Event]:
        now = time.monotonic()
        is_fresh = now >= self._fresh_at
        if is_fresh:
            self._fresh_at = now + _FRESH_EVERY_S
        for record in self._reader.poll(is_fresh=is_fresh):
            name, incarnation = split_writer(record.writer)
            slot = self._slots.get(name)
            if slot is None:
                continue
            if record.kind == HELLO:
                self._greet(record)
            if incarnation != slot.incarnation:
                continue
            slot.heard_at = now
            self._welcome_back(slot, record)
            event = self._event(record, slot) if record.kind == MESSAGE else None
            if event is not None and (event.trial, event.attempt) == (slot.trial, slot.attempt):
                self._said.append(event)
                if isinstance(event, AttemptEnded):
                    slot.release()
        found, self._said = self._said, []
        return found

    def _greet(self, record: Record) -> None:
        """A life of a worker has begun: the attempt that an earlier one had is lost."""
        name, incarnation = split_writer(record.writer)
        slot = self._slots.get(name)
        if slot is None or not is_newer(incarnation, slot.incarnation):
            return
        if slot.trial:
            self._said.append(end_with(slot, f"slot {name} was started again on {record.data.get('host', 'a node')}"))
        slot.release()
        slot.incarnation, slot.is_gone, slot.heard_at = incarnation, False, time.monotonic()
        slot.host, slot.pid = str(record.data.get("host", "")), _number(record.data.get("pid"))
        self._said.append(SlotJoined(slot=name, host=slot.host))

    def _welcome_back(self, slot: RunSlot, record: Record) -> None:
        """A worker that was silent for too long is heard again: it is of use once its old attempt is over."""
        is_free = not slot.stale or (record.kind == MESSAGE and _is_a(record.data.get("message"), "ended"))
        if slot.is_gone and is_free:
            slot.is_gone, slot.stale = False, False
            self._said.append(SlotJoined(slot=slot.name, host=slot.host))

    def _event(self, record: Record, slot: RunSlot) -> AttemptStarted | AttemptEnded | None:
        """What a worker says; None for a record that holds no message."""
        message: Any = record.data.get("message")
        if _is_a(message, "started"):
            message = {**message, "slot": slot.name, "host": slot.host, "pid": slot.pid}
        try:
            event: AttemptStarted | AttemptEnded | None = from_message(message)
        except BadMessageError:
            return None
        return event

    # --- the runs behind the slots

    def _keep(self) -> list[Event]:
        """Look after one slot after another: its run may be over, or its worker silent."""
        now = time.monotonic()
        slots = [slot for slot in self._slots.values() if not slot.is_gone]
        if now < self._keep_at or not slots:
            return []
        self._keep_at = now + max(0.5, _KEEP_EVERY_S / len(slots))
        self._next_kept = (self._next_kept + 1) % len(slots)
        slot = slots[self._next_kept]
        with suppress(UnreachableError):
            slot.run.reconcile()
        facts = slot.run.facts
        if facts.state.is_terminal:
            return self._lose(slot, f"its run {slot.run.id} {facts.state}: {facts.cause}", is_over=True)
        if slot.incarnation and now - slot.heard_at > _SILENT_S:
            return self._lose(slot, f"its worker on {slot.host} has been silent for {_SILENT_S:g} s", is_over=False)
        return []

    def _lose(self, slot: RunSlot, why: str, *, is_over: bool) -> list[Event]:
        self._fresh_at = 0.0
        found = self._hear()
        found.append(SlotLost(slot=slot.name, why=why))
        if slot.trial:
            found.append(end_with(slot, f"slot {slot.name} is gone: {why}"))
            if not is_over:  # when its worker is heard again, this is what it hears first
                self._tell(slot, to_message(Halt(trial=slot.trial, attempt=slot.attempt)))
        slot.leave(is_silent=not is_over)
        if is_over:
            self._replace(slot, why)
        return found

    def _replace(self, slot: RunSlot, why: str) -> None:
        """Another run in the place of one that is over."""
        slot.close()
        name = self._crew.next_life(slot)
        if name:
            self._add([name])
        elif all(each.is_gone for each in self._slots.values()):
            self._never = f"slot {slot.name} cannot live: {why}\n{last_words(slot.run)}"

    def _add(self, names: list[str]) -> None:
        self._slots.update((slot.name, slot) for slot in self._crew.launch(names))

    def _tell(self, slot: RunSlot, message: Message) -> None:
        slot.tell(message, self._places, self._head, self._clock)


def _number(value: Any) -> int:
    """A process's number; 0 for what is none."""
    return value if type(value) is int else 0


def _is_a(message: Any, type_: str) -> bool:
    """Whether it is a message of a type."""
    return isinstance(message, dict) and message.get("type") == type_
