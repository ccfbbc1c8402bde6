"""Executor on Ray: one long-lived, detached actor per slot, which takes orders and returns events.

A slot has the shape of its trial: one bundle becomes the actor's resources, several become a placement group. A slot
takes the next trial of its shape; if its trial declared GPUs, it is replaced by a fresh process (`reuse`).
"""

from __future__ import annotations

import hashlib
import json
import queue
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.phrases import count
from windlass.tune.executors.channel import from_message, work_to_data
from windlass.tune.executors.output import settle_output
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    Event,
    Order,
    Room,
    SlotJoined,
    SlotLost,
    SlotNoticed,
    StartAttempt,
    Work,
)
from windlass.tune.executors.ray.checkpoint_transfer import CheckpointTransfer
from windlass.tune.executors.ray.cluster import RayCluster
from windlass.tune.executors.ray.connection import RayConnection
from windlass.tune.executors.ray.mailbox import Numbered
from windlass.tune.executors.ray.placing import Placer
from windlass.tune.executors.ray.pool import RaySlotPool, is_replaced, take_over
from windlass.tune.executors.ray.slot import RaySlot, Reply
from windlass.tune.executors.ray.slot_actor import SlotFacts, SlotNotice
from windlass.tune.trial import Resources

__all__ = ["RayExecutor"]

LINGER_S = 600.0
MAX_STILLBORN = 3
"""Number of consecutive slots that may die while starting before the trial fails."""

_TICK_S = 1.0
_CLEAR_S = 5.0
_OPTIONS = ("detach", "linger_s", "log_to_file", "resources")
"""Accepted executor options; slots on Ray can always be detached."""


class RayExecutor:
    """Executor whose slots are actors on a Ray cluster.

    The actors outlive the head, and another head finds them.

    Args:
        address: address of the cluster. Default: RAY_ADDRESS, which windlass sets in a `cluster: ray` task, or else
            Ray on this machine only, which ends with this process. Ignored if the process is already connected.
        runtime_env: Ray's runtime environment for the actors.
        num_slots: limit of concurrent trials; 0 for the sweep's limit, or as many as the cluster holds.
        linger_s: seconds that slots continue without a head before they exit.
        namespace: namespace of the sweep's actors; by default derived from the sweep's name and folder.
        init: further arguments of `ray.init`, used if this process is not connected yet.
    """

    name: ClassVar[str] = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        runtime_env: Mapping[str, Any] | None = None,
        num_slots: int = 0,
        linger_s: float = LINGER_S,
        namespace: str = "",
        init: Mapping[str, Any] | None = None,
    ) -> None:
        if linger_s <= 0:
            raise UsageError(
                f"linger_s is {linger_s}, which leaves the next head no time to find the slots",
                hint="pass a number of seconds above 0; the default is 600",
                code="ray-options",
            )
        self._connection = RayConnection(address, runtime_env, init)
        self._num_slots, self._linger_s, self._namespace = num_slots, linger_s, namespace
        self._inbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._events: list[Event] = []
        self._running: dict[str, RaySlot] = {}
        self._is_open = self._has_begun = False
        self._num_stillborn = 0
        self._ticked_at = 0.0

    # -------------------------------------------------------------------------------------------------- the protocol

    def open(self, work: Work) -> None:
        """Connect to Ray. Blocks for seconds.

        Slots are created later, with the resources that trials need.
        """
        _check_options(work.options)
        packed = _packed(work)
        self._work = work
        self._ray = self._connection.open(work.options.get("resources", {}))
        if work.options.get("detach"):
            self._check_detachable()
        self._marker = _leave_marker(work.storage)
        namespace = self._namespace or _namespace(work)
        self._placer = Placer(self._ray, namespace, packed, self._connection.actor_env)
        self._pool = RaySlotPool(
            self._placer,
            RayCluster(self._ray),
            num_slots=self._num_slots or work.num_slots,
            reuse=work.reuse,
            linger_s=float(work.options.get("linger_s", self._linger_s)),
            storage=work.storage,
            marker=str(self._marker or ""),
            deliver=self._inbox.put,
            on_end=self._claim_output,
        )
        self._is_open = True

    def room(self, resources: Resources) -> Room:
        """Return whether a trial fits, according to Ray's tables, which are at most a quarter of a second old."""
        self._begin()
        return self._pool.room(resources)

    def capacity(self) -> Mapping[str, float]:
        """Return the total resources of the live nodes."""
        return self._pool.capacity()

    def start(self, start: StartAttempt) -> None:
        """Start an attempt in a free slot with its resources, or in a new one."""
        self._begin()
        slot = self._pool.assign(start)
        self._running[start.trial] = slot

    def send(self, order: Order) -> None:
        """Queue an order to a running attempt, which the next `poll` sends."""
        slot = self._running.get(order.trial)
        if slot is not None and slot.attempt == order.attempt:
            slot.tell(order)

    def poll(self, timeout_s: float) -> list[Event]:
        """Return new events, blocking up to `timeout_s` for the first."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._tick()
            for slot in self._pool.slots.values():
                slot.flush()
            left = deadline - time.monotonic()
            self._receive(0.0 if self._events else min(left, _TICK_S))
            if self._events or left <= 0:
                events, self._events = self._events, []
                return events

    def close(self) -> None:
        """End every slot of the sweep, and the connection if it was made here. Idempotent; blocks for seconds.

        If another head has taken over, its slots are left running.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._ray.is_initialized() and not is_replaced(self._ray, self._placer, self._pool):
                self._clear_disks()
                self._placer.remove_all()
        finally:
            for slot in self._pool.slots.values():
                self._claim_output(slot)
            self._drop_marker()
            self._connection.close()
            self._running.clear()

    # ---------------------------------------------------------------------------------------------------- other heads

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Take over the slots of a dead head; see `CanReattach`. Blocks for seconds if slots do not answer."""
        self._has_begun = True
        adopted = take_over(self._ray, self._placer, self._pool, running)
        for slot in adopted:
            assert slot.facts is not None
            self._events.append(SlotJoined(slot=slot.name, host=slot.facts.host))
            if slot.runs:
                self._running[slot.trial] = slot
            self._take_notice(slot, slot.facts.notice)
        return {slot.trial: slot.attempt for slot in adopted if slot.runs}

    def detach(self) -> None:
        """Leave slots and attempts running for another head.

        Raises:
            UsageError: this Ray ends with this process.
        """
        self._check_detachable()
        self._is_open = False
        self._connection.close()
        self._running.clear()

    def waiting_for(self) -> str:
        """Return why some slots are not up yet."""
        starting = [slot for slot in self._pool.slots.values() if not slot.is_up]
        return f"{count(len(starting), 'slot is', 'slots are')} being started by Ray" if starting else ""

    def _check_detachable(self) -> None:
        if self._connection.is_own_cluster:
            raise UsageError(
                "these trials run on a Ray cluster that stops with this process, so they cannot continue without it",
                hint="start Ray with `ray start --head` first, and pass its address to the sweep",
                code="ray-options",
            )

    def _begin(self) -> None:
        """Remove the slots of earlier heads, unless this head has reattached to them."""
        if not self._has_begun:
            self._has_begun = True
            self._placer.remove_all()

    # -------------------------------------------------------------------------------------------------------- replies

    def _receive(self, timeout_s: float) -> None:
        """Handle all replies, waiting up to `timeout_s` for the first."""
        try:
            reply = self._inbox.get(block=timeout_s > 0, timeout=max(timeout_s, 0.0) or None)
            while True:
                self._handle(*reply)
                reply = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _handle(self, slot: RaySlot, method: str, done: Future[Any]) -> None:
        if method == "exchange":
            slot.returned()
        if slot.name not in self._pool.slots:
            return
        error = done.exception()
        if method == "disk" and slot.transfer is not None:
            self._continue_transfer(slot, slot.transfer, done)
        elif error is not None:
            self._fail(slot, error)
        elif method == "facts":
            self._join(slot, done.result())
        else:
            self._take_answer(slot, done.result())

    def _join(self, slot: RaySlot, facts: SlotFacts) -> None:
        self._num_stillborn = 0
        self._pool.joined(slot, facts)
        self._events.append(SlotJoined(slot=slot.name, host=facts.host))
        self._take_notice(slot, facts.notice)

    def _take_notice(self, slot: RaySlot, notice: SlotNotice | None) -> None:
        """Report once that the machine of a slot is about to be taken away; a slot without a trial ends at once."""
        if notice is None or slot.notice is not None or slot.facts is None:
            return
        self._pool.leave(slot, notice)
        running = {"trial": slot.trial, "attempt": slot.attempt} if slot.runs else {}
        noticed = SlotNoticed(
            slot=slot.name,
            host=slot.facts.host,
            gone_at=notice.gone_at,
            why=notice.why,
            **running,  # type: ignore[arg-type]
        )
        self._events.append(noticed)
        if not slot.runs:
            self._pool.remove(slot)
            self._events.append(SlotLost(slot=slot.name, why=notice.why))

    def _take_answer(self, slot: RaySlot, answer: tuple[int, list[Numbered]] | None) -> None:
        if answer is None:
            raise PreconditionError(
                "another head has taken over this sweep's slots on Ray",
                hint="stop this head; `windlass sweep show` shows the other one",
                code="in-use",
            )
        events: list[Event] = [from_message(message) for message in slot.receive(*answer)]
        for notice in [event for event in events if isinstance(event, SlotNoticed)]:
            events.remove(notice)
            self._take_notice(slot, SlotNotice(gone_at=notice.gone_at, why=notice.why))
        self._add_events(slot, events if slot.transfer is None else slot.transfer.receive(events))

    def _continue_transfer(self, slot: RaySlot, transfer: CheckpointTransfer, done: Future[Any]) -> None:
        """Handle the result or failure of a transfer step."""
        error = done.exception()
        if error is None:
            self._add_events(slot, transfer.returned(done.result()))
        elif not isinstance(error, self._ray.exceptions.ActorDiedError):
            events = transfer.failed()
            if events is None:
                self._fail(slot, error)
            else:
                self._add_events(slot, events)

    def _add_events(self, slot: RaySlot, events: list[Event]) -> None:
        for event in events:
            self._events.append(event)
            if isinstance(event, AttemptEnded) and (event.trial, event.attempt) == (slot.trial, slot.attempt):
                self._running.pop(event.trial, None)
                self._pool.over(slot)
                if slot.notice is not None:
                    self._events.append(SlotLost(slot=slot.name, why=slot.notice.why))

    def _fail(self, slot: RaySlot, error: BaseException) -> None:
        """Handle a failed call: the actor is either temporarily unreachable or gone."""
        if isinstance(error, self._ray.exceptions.ActorUnavailableError) and slot.is_up:
            slot.resend()
            return
        was_up = slot.is_up
        if slot.transfer is not None:
            self._add_events(slot, slot.transfer.give_up())
        self._pool.remove(slot)
        text = _sentence(error)
        self._events.append(SlotLost(slot=slot.name, why=text))
        how, kind = AttemptOutcome.LOST, ""
        if not was_up and not self._may_try_again(error):
            how, kind, text = AttemptOutcome.FAILED, type(error).__name__, str(error)
        if slot.runs:
            self._running.pop(slot.trial, None)
            self._events.append(AttemptEnded(trial=slot.trial, attempt=slot.attempt, how=how, error=text, kind=kind))

    def _may_try_again(self, error: BaseException) -> bool:
        """Return whether to try another slot after one did not start.

        A broken environment is not tried again.
        """
        self._num_stillborn += 1
        exceptions = self._ray.exceptions
        is_hopeless = isinstance(error, exceptions.RuntimeEnvSetupError | exceptions.ActorUnschedulableError)
        return not is_hopeless and self._num_stillborn < MAX_STILLBORN

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked_at >= _TICK_S:
            self._ticked_at = now
            for slot in self._pool.give_back_old():
                self._events.append(SlotLost(slot=slot.name, why="it had no trial for a while"))
            for slot, gone_at in self._pool.leaving():
                self._take_notice(slot, SlotNotice(gone_at=gone_at, why="Ray drains its node"))

    def _claim_output(self, slot: RaySlot) -> None:
        """Move the last output from a slot to the log of its trial."""
        settle_output(self._work.folder, slot.name, slot.trial if slot.runs else "", self._work.options)

    def _clear_disks(self) -> None:
        """Remove the folders of slots.

        The next slot on a node removes those of slots that were killed.
        """
        far = [slot for slot in self._pool.slots.values() if slot.transfer is not None]
        if far:
            cleared = [slot.actor.disk.remote("remove") for slot in far]
            self._ray.wait(cleared, num_returns=len(cleared), timeout=_CLEAR_S)

    def _drop_marker(self) -> None:
        if self._marker is not None:
            self._marker.unlink(missing_ok=True)


def _packed(work: Work) -> bytes:
    """Encode the work to send to workers."""
    return json.dumps(work_to_data(work)).encode()


def _check_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(
                f"trials on Ray have no option `{name}`",
                hint=f"supported: {', '.join(_OPTIONS)}; pass Ray's own settings to RayExecutor",
                code="unknown-option",
            )


def _leave_marker(storage: str) -> Path | None:
    """Create a marker file in the sweep's storage, by which slots detect shared storage.

    Returns None if the storage is a URL.
    """
    if "://" in storage:
        return None
    marker = Path(storage, f".head-{uuid.uuid4().hex}")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()
    return marker


def _namespace(work: Work) -> str:
    return f"windlass-{work.name}-{hashlib.sha256(work.folder.encode()).hexdigest()[:12]}"


def _sentence(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:500] or type(error).__name__
