"""Executor for many small trials at a site: slots are runs whose workers pull trials, one job per slot.

Slots are preempted, chained and restarted like all runs. A restarted worker is a new incarnation of its slot, and the
attempt of the old incarnation is lost. Workers outlive their head: they continue within their credit, their messages
stay in their spools, and the next head reads the spools from the beginning.
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
from windlass.launcher import control
from windlass.launcher.prepare import Prepared
from windlass.record.frames import Record
from windlass.record.journal import JournalReader, read_journal
from windlass.runs.home import Home
from windlass.tune.executors.channel import BadMessageError, Leave, Message, from_message, to_message, work_to_data
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
from windlass.tune.executors.runs.trial_template import ensure_trial_template, needed
from windlass.tune.executors.slots.files import HELLO, MESSAGE, ORDER, SlotFiles, is_newer, split_writer
from windlass.tune.executors.slots.slot_runs import RunSlot, SlotRuns, end_with, last_words
from windlass.tune.trial import Resources

__all__ = ["SlotsExecutor"]

_LOOK_S = 0.02
_LATE_S = 0.2
_FRESH_EVERY_S = 2.0
_KEEP_EVERY_S = 5.0
_SILENT_S = 150.0
"""Silence after which a slot is lost; heartbeats come every 15 s, file systems may stall for 2 min."""
_LEAVE_S = 8.0
"""Time within which an idle worker ends, so that its run succeeds."""


class SlotsExecutor:
    """Executor whose workers are windlass runs.

    Args:
        home: the windlass home that holds the runs; None for the default.
        prepared: the experiment, for a sweep that was not declared in its file: `windlass.load("exp.yaml")`.
        log: called with progress lines of launches.
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
        self._events: list[Event] = []
        self._never = ""
        self._fresh_at = 0.0
        self._next_check_at = 0.0
        self._last_checked = 0

    # --- the protocol

    def open(self, work: Work) -> None:
        """Launch all missing slots together. Blocks until their jobs are submitted.

        Raises:
            WindlassError: the trainable cannot be sent, the experiment cannot be a slot, or the site rejects it.
        """
        self._files = SlotFiles(Path(work.folder))
        self._template = ensure_trial_template(Path(work.folder), self._prepared, work.name)
        self._slot_runs = SlotRuns(self._template, self._files, self._home, self._log)
        self._has = needed(self._template.plan)
        write_json(self._files.work, work_to_data(work))
        self._files.spools.mkdir(parents=True, exist_ok=True)
        self._reader = JournalReader(self._files.spools)
        number = work.num_slots or 1
        self._add([self._slot_runs.newest(f"{index:03d}") for index in range(number)])

    def room(self, resources: Resources) -> Room:
        """Return whether a slot is idle; never if slots are too small or none can start."""
        if self._never:
            return Room(Fit.NEVER, self._never)
        for name, amount in resources.total.items():
            if amount > self._has.get(name, 0.0):
                return Room(Fit.NEVER, f"a trial needs {amount:g} {name}, but a slot has {self._has.get(name, 0):g}")
        if any(slot.is_idle for slot in self._slots.values()):
            return Room(Fit.NOW)
        num_up = sum(1 for slot in self._slots.values() if slot.incarnation and not slot.is_gone)
        return Room(Fit.LATER, f"{num_up} of {count(len(self._slots), 'slot')} up, none idle")

    def start(self, start: StartAttempt) -> None:
        """Start an attempt in an idle slot."""
        slot = next(slot for slot in self._slots.values() if slot.is_idle)
        slot.trial, slot.attempt = start.trial, start.attempt
        self._send(slot, to_message(start))

    def send(self, order: Order) -> None:
        """Send an order to the slot that runs the attempt."""
        for slot in self._slots.values():
            if (slot.trial, slot.attempt) == (order.trial, order.attempt) and not slot.is_gone:
                self._send(slot, to_message(order))

    def poll(self, timeout_s: float) -> list[Event]:
        """Read the spools, check the runs, and return new events."""
        deadline, pause_s = time.monotonic() + timeout_s, _LOOK_S
        while True:
            found, self._events = self._events, []
            found += self._receive()
            found += self._check_runs()
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.3, _LATE_S)

    def close(self) -> None:
        """End idle workers cleanly and all others at once. Blocks until their runs are over."""
        slots, self._slots = list(self._slots.values()), {}
        leaving = [slot for slot in slots if slot.is_idle]
        for slot in leaving:
            self._send(slot, Leave)
        deadline = time.monotonic() + _LEAVE_S
        for slot in slots:
            while slot in leaving and not slot.run.state.is_terminal and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            with suppress(WindlassError):
                control.kill(slot.run.folder, self._home)
            slot.close()

    def detach(self) -> None:
        """Leave the slots running for the next head."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()

    def waiting_for(self) -> str:
        """Return why slots are not up, as their site reports it."""
        waiting = [slot for slot in self._slots.values() if not slot.incarnation and not slot.is_gone]
        reasons = [task.reason for slot in waiting for task in slot.run.facts.tasks.values() if task.reason]
        return f"{len(waiting)} of {count(len(self._slots), 'slot')} not up: {reasons[0]}" if reasons else ""

    # --- another head's slots

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Read all spools and orders from the beginning; the next `poll` returns their events."""
        records = self._reader.poll(is_fresh=True)
        for record in records:
            if record.kind == HELLO:
                self._on_hello(record)
        self._events = [event for event in self._events if not isinstance(event, SlotJoined)]
        received: dict[tuple[str, int], list[Event]] = {}
        owner: dict[tuple[str, int], RunSlot] = {}
        for slot in self._slots.values():
            for start in self._ordered(slot):
                owner[start.trial, start.attempt] = slot
        for record in records:
            slot_of = self._slots.get(split_writer(record.writer)[0])
            if record.kind == MESSAGE and slot_of is not None:
                event = self._event(record, slot_of)
                if event is not None:
                    received.setdefault((event.trial, event.attempt), []).append(event)
        found = {}
        for trial, attempt in running.items():
            key = (trial, attempt)
            events = received.get(key, [])
            has_ended = bool(events) and isinstance(events[-1], AttemptEnded)
            if not has_ended and key not in owner:
                continue
            if not has_ended:
                owner[key].trial, owner[key].attempt = trial, attempt
            self._events += events
            found[trial] = attempt
        self._events += [
            SlotJoined(slot=slot.name, host=slot.host) for slot in self._slots.values() if slot.incarnation
        ]
        return found

    def _ordered(self, slot: RunSlot) -> list[StartAttempt]:
        """Return the attempts that the current incarnation of a slot was ordered to start."""
        records = read_journal(self._files.orders(slot.name)) if slot.incarnation else []
        messages = [
            record.data.get("message")
            for record in records
            if record.kind == ORDER and record.data.get("to") == slot.incarnation
        ]
        return [from_message(message) for message in messages if _is_a(message, "start")]

    # --- messages of workers

    def _receive(self) -> list[Event]:
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
                self._on_hello(record)
            if incarnation != slot.incarnation:
                continue
            slot.last_message_at = now
            self._on_return(slot, record)
            event = self._event(record, slot) if record.kind == MESSAGE else None
            if event is not None and (event.trial, event.attempt) == (slot.trial, slot.attempt):
                self._events.append(event)
                if isinstance(event, AttemptEnded):
                    slot.release()
        found, self._events = self._events, []
        return found

    def _on_hello(self, record: Record) -> None:
        """Handle a new incarnation of a worker, with which the attempt of the earlier one is lost."""
        name, incarnation = split_writer(record.writer)
        slot = self._slots.get(name)
        if slot is None or not is_newer(incarnation, slot.incarnation):
            return
        if slot.trial:
            self._events.append(end_with(slot, f"slot {name} was restarted on {record.data.get('host', 'a node')}"))
        slot.release()
        slot.incarnation, slot.is_gone, slot.last_message_at = incarnation, False, time.monotonic()
        slot.host, slot.pid = str(record.data.get("host", "")), _number(record.data.get("pid"))
        self._events.append(SlotJoined(slot=name, host=slot.host))

    def _on_return(self, slot: RunSlot, record: Record) -> None:
        """Make a slot available again once its worker, which was silent, has finished its old attempt."""
        is_free = not slot.stale or (record.kind == MESSAGE and _is_a(record.data.get("message"), "ended"))
        if slot.is_gone and is_free:
            slot.is_gone, slot.stale = False, False
            self._events.append(SlotJoined(slot=slot.name, host=slot.host))

    def _event(self, record: Record, slot: RunSlot) -> AttemptStarted | AttemptEnded | None:
        """Return the event in a record, or None for a record without a message."""
        message: Any = record.data.get("message")
        if _is_a(message, "started"):
            message = {**message, "slot": slot.name, "host": slot.host, "pid": slot.pid}
        try:
            event: AttemptStarted | AttemptEnded | None = from_message(message)
        except BadMessageError:
            return None
        return event

    # --- the runs behind the slots

    def _check_runs(self) -> list[Event]:
        """Check one slot after another for a run that has ended or a worker that is silent."""
        now = time.monotonic()
        slots = [slot for slot in self._slots.values() if not slot.is_gone]
        if now < self._next_check_at or not slots:
            return []
        self._next_check_at = now + max(0.5, _KEEP_EVERY_S / len(slots))
        self._last_checked = (self._last_checked + 1) % len(slots)
        slot = slots[self._last_checked]
        with suppress(UnreachableError):
            slot.run.reconcile()
        facts = slot.run.facts
        if facts.state.is_terminal:
            return self._lose(slot, f"its run {slot.run.id} {facts.state}: {facts.cause}", is_over=True)
        if slot.incarnation and now - slot.last_message_at > _SILENT_S:
            return self._lose(slot, f"its worker on {slot.host} has been silent for {_SILENT_S:g} s", is_over=False)
        return []

    def _lose(self, slot: RunSlot, why: str, *, is_over: bool) -> list[Event]:
        self._fresh_at = 0.0
        found = self._receive()
        found.append(SlotLost(slot=slot.name, why=why))
        if slot.trial:
            found.append(end_with(slot, f"slot {slot.name} is gone: {why}"))
            if not is_over:  # the first order for its worker when that is back
                self._send(slot, to_message(Halt(trial=slot.trial, attempt=slot.attempt)))
        slot.leave(is_silent=not is_over)
        if is_over:
            self._replace(slot, why)
        return found

    def _replace(self, slot: RunSlot, why: str) -> None:
        """Replace a run that has ended with a new one."""
        slot.close()
        name = self._slot_runs.next_life(slot)
        if name:
            self._add([name])
        elif all(each.is_gone for each in self._slots.values()):
            self._never = f"slot {slot.name} cannot run: {why}\n{last_words(slot.run)}"

    def _add(self, names: list[str]) -> None:
        self._slots.update((slot.name, slot) for slot in self._slot_runs.launch(names))

    def _send(self, slot: RunSlot, message: Message) -> None:
        slot.tell(message, self._files, self._head, self._clock)


def _number(value: Any) -> int:
    """Return a process id, or 0 if it is invalid."""
    return value if type(value) is int else 0


def _is_a(message: Any, type_: str) -> bool:
    """Return whether a value is a message of this type."""
    return isinstance(message, dict) and message.get("type") == type_
