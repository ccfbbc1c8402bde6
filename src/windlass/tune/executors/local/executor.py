"""Executor on this machine, with worker processes that are forked from a template process.

A worker runs one trial after another; if GPUs are declared, it runs only one (`reuse`), so that their memory is freed
afterwards. All processes end with the head, whichever of them is killed.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from windlass.core.phrases import count
from windlass.tune.arguments import refuses_unknown
from windlass.tune.executors.channel import (
    BadMessageError,
    Leave,
    Message,
    from_message,
    read_hello,
    to_message,
    work_to_data,
)
from windlass.tune.executors.local.detached import (
    Registration,
    connect,
    end_worker,
    make_sockets_folder,
    read_registrations,
    read_spool,
    remove,
)
from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.executors.local.machine_resources import MachineResources
from windlass.tune.executors.local.slots import LocalSlot, LocalSlots, explain
from windlass.tune.executors.local.template_process import IMPORT_LIMIT_S, TemplateProcess, ready_template
from windlass.tune.executors.local.trial_monitor import LOOK_EVERY_S, TrialMonitor
from windlass.tune.executors.output import settle_output
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
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
from windlass.tune.storage import is_url
from windlass.tune.trial import Resources

__all__ = ["Local"]

_GRACE_S = 5.0
_EXIT_S = 10.0
_LINGER_S = 60.0


@dataclass(frozen=True, slots=True)
class _Death:
    """Marker for the process descriptor of a worker from a previous head, which signals the worker's end."""

    slot: LocalSlot


@refuses_unknown
class Local:
    """Executor that runs trials on this machine."""

    name: ClassVar[str] = "local"

    def __init__(
        self,
        *,
        resources: Mapping[str, float] | None = None,
        shows_output: bool | None = None,
        halt_grace_s: float | None = None,
        linger_s: float | None = None,
        quiet_factor: float | None = None,
        quiet_floor_s: float | None = None,
        import_limit_s: float | None = None,
    ) -> None:
        """Describe the executor, without starting anything yet.

        Args:
            resources: resources for trials, instead of the machine's: `{"CPU": 8, "widgets": 2}`.
            shows_output: copy the output of trials to this process's standard error, with the trial's id on each line.
            halt_grace_s: seconds after which a halted trial is killed; default 30.
            linger_s: seconds for which workers of a detached sweep wait for the next head; default 60.
            quiet_factor: number of usual step times without a report after which the stack is shown; default 20.
            quiet_floor_s: minimum seconds before that, ten times as long before the first report; default 60.
            import_limit_s: maximum seconds for importing the trainable's module and `preload`; default 600.
        """
        stated = {
            "resources": resources,
            "shows_output": shows_output,
            "halt_grace_s": halt_grace_s,
            "linger_s": linger_s,
            "quiet_factor": quiet_factor,
            "quiet_floor_s": quiet_floor_s,
            "import_limit_s": import_limit_s,
        }
        self._stated = {name: value for name, value in stated.items() if value is not None}
        self._work: Work | None = None
        self._host = os.uname().nodename
        self._selector = selectors.DefaultSelector()
        self._slots = LocalSlots()
        self._deadlines: dict[str, float] = {}  # when to kill the worker of a slot, unless its trial ends before
        self._events: list[Event] = []
        self._template: TemplateProcess | None = None
        self._is_asked: Callable[[], bool] = bool
        self._machine: MachineResources
        self._monitor: TrialMonitor
        self._data: dict[str, Any] = {}

    # ---------------------------------------------------------------------------------------------- open, close

    def open(self, work: Work) -> None:
        """Start the template and wait until it has imported the trainable; workers are forked on demand.

        Raises:
            UsageError: the trainable cannot be imported or pickled.
        """
        storage = work.storage if is_url(work.storage) else os.path.abspath(work.storage)
        options = {**work.options, **self._stated}
        work = replace(work, folder=os.path.abspath(work.folder), storage=storage, options=options)
        self._data = work_to_data(work)
        self._machine = MachineResources(work)
        self._work = work
        self._monitor = TrialMonitor(work.folder, work.options)
        self._start_template()

    def end_opening_when(self, is_asked: Callable[[], bool]) -> None:
        """Set the function that asks `open` to end early; see `OpensSlowly.end_opening_when`."""
        self._is_asked = is_asked

    def _start_template(self) -> TemplateProcess:
        facts: dict[str, Any] = {"is_detached": self._is_detached, "linger_s": self._option("linger_s", _LINGER_S)}
        if self._is_detached:
            facts["sockets"] = make_sockets_folder()
        limit_s = self._option("import_limit_s", IMPORT_LIMIT_S)
        self._template = template = ready_template(self._data, facts, limit_s, self._is_asked)
        if self._is_detached:
            self._machine.guard(template.pid)
        self._selector.register(template.wire, selectors.EVENT_READ, template)
        return template

    def _option(self, name: str, default: Any) -> Any:
        assert self._work is not None
        return self._work.options.get(name, default)

    @property
    def _is_detached(self) -> bool:
        return bool(self._option("detach", False))

    def capacity(self) -> Mapping[str, float]:
        """Return the resources of this machine that trials may use."""
        return self._machine.capacity()

    def close(self) -> None:
        """Kill running trials, and give idle workers a moment to clean up. Leaves no process. Idempotent."""
        template, self._template = self._template, None
        if template is not None:
            busy = [slot.pid for slot in self._slots if slot.running is not None and slot.pid]
            for slot in self._slots:
                if slot.running is None:
                    slot.wire.send(Leave)
                slot.wire.close()
            template.leave(busy, _GRACE_S)
            template.end()
        for slot in self._slots:
            self._end_adopted(slot)
            self._claim_output(slot)
            self._slots.remove(slot)
        self._selector.close()
        if self._work is not None:
            self._machine.close()
            self._forget_workers()

    def _forget_workers(self) -> None:
        assert self._work is not None
        if self._is_detached:
            for found in read_registrations(self._work.folder):
                remove(self._work.folder, found)

    # ------------------------------------------------------------------------------------------ heads come and go

    def detach(self) -> None:
        """Leave workers and their trials running for another head, and close this executor."""
        template, self._template = self._template, None
        if template is not None:
            template.abandon()
        for slot in self._slots:
            slot.wire.close()
            self._slots.remove(slot)
        self._selector.close()
        self._work = None

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Take over a previous head's workers that run one of these attempts, and end all other workers."""
        assert self._work is not None
        found: dict[str, int] = {}
        self._machine.recover()
        for registration in read_registrations(self._work.folder):
            self._slots.begin_after(int(registration.slot))
            is_expected = running.get(registration.trial) == registration.attempt
            if is_expected and (self._adopt(registration) or self._replay(registration)):
                found[registration.trial] = registration.attempt
            else:
                end_worker(registration)
                remove(self._work.folder, registration)
        return found

    def _adopt(self, registration: Registration) -> bool:
        """Take over a running worker; return whether that worked."""
        connection = connect(registration) if registration.is_alive else None
        if connection is None:
            return False
        slot = LocalSlot(
            registration.slot,
            LineConnection(connection),
            variables=registration.variables,
            is_single=registration.is_single,
        )
        slot.pid, slot.stacks, slot.registration = registration.process.pid, registration.stacks, registration
        slot.share = self._machine.claim(registration.resources, registration.variables)
        self._slots.add(slot)
        self._slots.occupy(slot, registration.trial, registration.attempt)
        self._monitor.began(registration.trial)
        self._selector.register(slot.wire, selectors.EVENT_READ, slot)
        slot.watch = os.pidfd_open(slot.pid)
        self._selector.register(slot.watch, selectors.EVENT_READ, _Death(slot))
        self._events.append(SlotJoined(slot=slot.id, host=self._host))
        return True

    def _replay(self, registration: Registration) -> bool:
        """Process the spool of a dead worker; return False if the end of its trial is not in it."""
        assert self._work is not None
        messages = read_spool(self._work.folder, registration.slot)
        events = [from_message(message) for message in messages if message.get("trial") == registration.trial]
        if not events or not isinstance(events[-1], AttemptEnded):
            return False
        self._events += events
        remove(self._work.folder, registration)
        return True

    def _on_adopted_death(self, slot: LocalSlot) -> None:
        assert self._work is not None
        assert slot.registration is not None
        if not slot.wire.is_closed:
            self._read(slot)
        for message in read_spool(self._work.folder, slot.id):
            self._on_message(slot, message)
        self._forget_socket(slot)
        self._bury(slot, AttemptOutcome.LOST, "the worker, started by a previous head, no longer exists", "")
        remove(self._work.folder, slot.registration)

    def _end_adopted(self, slot: LocalSlot) -> None:
        if slot.registration is not None:
            end_worker(slot.registration, grace_s=0.0 if slot.running else _GRACE_S)

    # --------------------------------------------------------------------------------------------- room and start

    def room(self, resources: Resources) -> Room:
        """Return whether a trial with these resources fits beside the running trials."""
        found = self._machine.room(resources)
        if found.fit is Fit.NOW and self._slots.num_running >= self._limit:
            return Room(Fit.LATER, f"{self._slots.num_running} of {count(self._limit, 'slot')} in use")
        return found

    def start(self, start: StartAttempt) -> None:
        """Start an attempt in an idle worker or in a new one."""
        share = self._machine.take(start.resources)
        variables = self._machine.environment(share, start.resources)
        slot = self._slots.idle(variables) or self._new_worker(variables, has_gpus=bool(share.gpus))
        slot.share = share
        self._slots.occupy(slot, start.trial, start.attempt)
        self._monitor.began(start.trial)
        if slot.pid:
            self._tell_started(slot)
        self._send(slot, to_message(start))

    def _new_worker(self, variables: dict[str, str], *, has_gpus: bool) -> LocalSlot:
        assert self._work is not None
        self._retire_surplus()
        template = self._template or self._start_template()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        is_single = self._work.reuse == "never" or (self._work.reuse == "auto" and has_gpus)
        slot = LocalSlot(self._slots.new_id(), LineConnection(ours), variables=variables, is_single=is_single)
        self._slots.add(slot)
        self._selector.register(slot.wire, selectors.EVENT_READ, slot)
        template.fork(theirs, {"slot": slot.id, "env": variables, "serves_one": is_single})
        self._events.append(SlotJoined(slot=slot.id, host=self._host))
        return slot

    def _retire_surplus(self) -> None:
        """End idle workers for other resources if workers occupy all slots."""
        while len(self._slots) >= self._limit and (idle := self._slots.any_idle()) is not None:
            self._send(idle, Leave)
            idle.is_ending = True

    @property
    def _limit(self) -> int:
        assert self._work is not None
        return self._work.num_slots or self._machine.max_slots

    def _tell_started(self, slot: LocalSlot) -> None:
        assert slot.running is not None
        trial, attempt = slot.running
        self._events.append(AttemptStarted(trial=trial, attempt=attempt, slot=slot.id, host=self._host, pid=slot.pid))

    def send(self, order: Order) -> None:
        """Send an order to a running attempt; an attempt that does not halt in time is killed."""
        slot = self._slots.of(order.trial, order.attempt)
        if slot is None:
            return
        if isinstance(order, Halt):
            slot.is_ending = True
            self._monitor.halted(order.trial)
            self._deadlines[slot.id] = time.monotonic() + self._option("halt_grace_s", 30.0)
        self._send(slot, to_message(order))

    def _send(self, slot: LocalSlot, message: Message) -> None:
        slot.wire.send(message)
        if slot.wire.has_unsent and not slot.wire.is_closed:
            self._selector.modify(slot.wire, selectors.EVENT_READ | selectors.EVENT_WRITE, slot)

    # -------------------------------------------------------------------------------------------------------- poll

    def poll(self, timeout_s: float) -> list[Event]:
        """Return new events, blocking up to `timeout_s` for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = 0.0 if self._events else max(0.0, deadline - time.monotonic())
            self._look(min(wait_s, self._next_deadline_s(), LOOK_EVERY_S))
            if self._events or wait_s == 0.0:
                break
        events, self._events = self._events, []
        return events

    def _look(self, wait_s: float) -> None:
        """Read every socket that is ready, once."""
        is_template_ready = False
        for key, mask in self._selector.select(wait_s):
            if isinstance(key.data, LocalSlot):
                self._on_ready(key.data, mask)
            elif isinstance(key.data, _Death):
                self._on_adopted_death(key.data.slot)
            else:
                is_template_ready = True
        if is_template_ready:  # after the workers, so that their last messages are handled first
            self._on_template()
        self._kill_the_late()
        self._machine.give_back_idle()
        self._monitor.look(self._slots)

    def notes(self) -> list[tuple[str, str]]:
        """Return new notes on running trials, as (trial, text); see `TellsNotes`."""
        return self._monitor.take_notes()

    def _on_ready(self, slot: LocalSlot, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            slot.wire.flush()
            if not slot.wire.has_unsent:
                self._selector.modify(slot.wire, selectors.EVENT_READ, slot)
        if mask & selectors.EVENT_READ:
            self._read(slot)

    def _read(self, slot: LocalSlot) -> None:
        try:
            for message in slot.wire.receive():
                self._on_message(slot, message)
        except BadMessageError:
            slot.wire.is_closed = True
        if slot.wire.is_closed:
            self._forget_socket(slot)

    def _forget_socket(self, slot: LocalSlot) -> None:
        if slot.wire.fileno() >= 0:
            self._slots.forget_socket(slot)
            self._selector.unregister(slot.wire)
            slot.wire.close()

    def _on_message(self, slot: LocalSlot, message: Message) -> None:
        type_ = message["type"]
        if type_ == "hello":
            is_new = not slot.pid
            slot.pid, slot.stacks = read_hello(message)
            if is_new and slot.running is not None:
                self._tell_started(slot)
            return
        event = from_message(message)
        if slot.running != (event.trial, event.attempt):
            return
        if isinstance(event, AttemptEnded):
            self._end(slot, event)
            return
        if isinstance(event, AttemptReported):
            self._monitor.reported(event.trial)
        self._events.append(event)

    def _end(self, slot: LocalSlot, ended: AttemptEnded) -> None:
        """End an attempt; with a single-use worker, this happens once its process has ended."""
        if slot.is_single and slot.last_words is None:
            slot.last_words = ended
            self._deadlines[slot.id] = time.monotonic() + _EXIT_S
            return
        self._deadlines.pop(slot.id, None)
        slot.is_ending, slot.last_words = False, None
        self._slots.free(slot)
        self._machine.give(slot.share)
        self._monitor.ended(ended.trial)
        self._events.append(ended)

    # --------------------------------------------------------------------------------------- deaths of processes

    def _on_template(self) -> None:
        template = self._template
        if template is None:
            return
        for message in template.wire.receive():
            if message["type"] == "exited":
                self._on_exit(message["slot"], message["status"], message["is_oom"])
        if template.wire.is_closed:
            self._lose_template(template)

    def _on_exit(self, id_: str, status: int, is_oom: bool) -> None:
        slot = self._slots.get(id_)
        if slot is None:
            return
        if not slot.wire.is_closed:
            self._read(slot)  # its last messages, before its death
        self._forget_socket(slot)
        self._bury(slot, *explain(status, is_oom=is_oom))

    def _bury(self, slot: LocalSlot, how: AttemptOutcome, why: str, kind: str) -> None:
        if slot.running is not None:
            self._claim_output(slot)
            trial, attempt = slot.running
            ended = AttemptEnded(trial=trial, attempt=attempt, how=how, error=why, kind=kind)
            if slot.last_words is not None:
                ended = slot.last_words
            elif slot.is_ending:
                ended = AttemptEnded(trial=trial, attempt=attempt, how=AttemptOutcome.HALTED)
            else:
                self._events.append(SlotLost(slot=slot.id, why=why))
            slot.last_words = ended
            self._end(slot, ended)
        self._deadlines.pop(slot.id, None)
        if slot.watch >= 0:
            self._selector.unregister(slot.watch)
            os.close(slot.watch)
        self._slots.remove(slot)

    def _claim_output(self, slot: LocalSlot) -> None:
        """Move the output of a dead worker to the log of its trial."""
        assert self._work is not None
        settle_output(self._work.folder, slot.id, slot.running[0] if slot.running else "", self._work.options)

    def _lose_template(self, template: TemplateProcess) -> None:
        """Handle the end of the template process: its workers are gone, and a new one is started on demand."""
        self._selector.unregister(template.wire)
        template.end(0.0)
        self._template = None
        for slot in self._slots:
            if slot.registration is not None:
                continue
            if not slot.wire.is_closed:
                self._read(slot)
            self._forget_socket(slot)
            self._bury(slot, AttemptOutcome.LOST, "the template process of the workers was killed", "")

    def _next_deadline_s(self) -> float:
        return max(0.0, min(self._deadlines.values()) - time.monotonic()) if self._deadlines else LOOK_EVERY_S

    def _kill_the_late(self) -> None:
        """Kill workers that have not ended by their deadline."""
        if not self._deadlines:
            return
        now = time.monotonic()
        for id_, deadline in list(self._deadlines.items()):
            slot = self._slots.get(id_)
            if slot is None or deadline > now or not slot.pid:
                continue
            del self._deadlines[id_]
            if slot.registration is not None:
                end_worker(slot.registration)
            elif self._template is not None:
                self._template.kill(slot.pid)
