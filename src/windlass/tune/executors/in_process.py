"""Executor that runs one trial at a time in this process, for debuggers, with the worker loop in a thread.

`host` swaps the threads: the controller runs in the new thread, and trials in the caller's (for signals, pdb, torch).
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import ClassVar, TypeVar

from windlass.tune.executors.channel import ChannelClosed, Message, from_message, to_message
from windlass.tune.executors.protocol import AttemptEnded, AttemptStarted, Event, Fit, Order, Room, StartAttempt, Work
from windlass.tune.executors.worker import Worker
from windlass.tune.trial import Resources

__all__ = ["InProcess"]

T = TypeVar("T")
_SLOT = "in-process"


class _Closed:
    """Marker for the end of a queue."""


_CLOSED = _Closed()


class _QueueChannel:
    """Channel from a worker to its executor within one process."""

    def __init__(self) -> None:
        self.inward: queue.SimpleQueue[Message | _Closed] = queue.SimpleQueue()
        self.outward: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._is_closed = False

    def send(self, message: Message) -> None:
        """Send one message. Never blocks."""
        if self._is_closed:
            raise ChannelClosed("the executor is closed")
        self.outward.put(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message; see `WorkerChannel.receive`."""
        if self._is_closed:
            raise ChannelClosed("the executor is closed")
        try:
            found = self.inward.get(block=timeout_s != 0, timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(found, _Closed):
            self._is_closed = True
            raise ChannelClosed("the executor is closed")
        return found


class InProcess:
    """Executor with a single slot in this process; resources are not counted."""

    name: ClassVar[str] = "in-process"

    def __init__(self) -> None:
        self._channel = _QueueChannel()
        self._thread: threading.Thread | None = None
        self._running: tuple[str, int] | None = None
        self._events: list[Event] = []
        self._is_hosted = False
        self._opened: queue.SimpleQueue[Worker | None] = queue.SimpleQueue()

    def open(self, work: Work) -> None:
        """Start the worker."""
        worker = Worker(self._channel, work, passes_interrupts=self._is_hosted)
        self._opened.put(worker)
        if not self._is_hosted:
            self._thread = threading.Thread(target=self._serve, name="windlass-trials", daemon=True)
            self._thread.start()

    def host(self, drive: Callable[[], T]) -> T:
        """Run `drive`, which opens and uses this executor, in a thread, and the trials in the calling thread. Blocks.

        Returns the result of `drive`, or raises its exception.
        """
        self._is_hosted = True
        is_over: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def control() -> None:
            try:
                is_over.put((drive(), None))
            except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
                is_over.put((None, error))
            finally:
                self._opened.put(None)
                self._channel.inward.put(_CLOSED)

        thread = threading.Thread(target=control, name="windlass-head")
        thread.start()
        self._serve()
        thread.join()
        returned, error = is_over.get()
        if error is not None:
            raise error
        return returned  # type: ignore[return-value]

    def _serve(self) -> None:
        """Run the worker in this thread once `open` has created it."""
        worker = self._opened.get()
        if worker is None:
            return
        try:
            worker.run()
        except KeyboardInterrupt:
            self._channel.outward.put({"type": "interrupted"})

    def room(self, resources: Resources) -> Room:
        """Return whether the slot is free for a trial."""
        return Room(Fit.NOW) if self._running is None else Room(Fit.LATER, "trials run one at a time in this process")

    def start(self, start: StartAttempt) -> None:
        """Start an attempt in the worker."""
        self._running = (start.trial, start.attempt)
        self._events.append(
            AttemptStarted(
                trial=start.trial, attempt=start.attempt, slot=_SLOT, host=os.uname().nodename, pid=os.getpid()
            )
        )
        self._channel.inward.put(to_message(start))

    def send(self, order: Order) -> None:
        """Send an order to the attempt that runs."""
        if self._running == (order.trial, order.attempt):
            self._channel.inward.put(to_message(order))

    def poll(self, timeout_s: float) -> list[Event]:
        """Return new events; the trial keeps running."""
        events, self._events = self._events, []
        while True:
            try:
                wait_s = 0.0 if events else timeout_s
                message = self._channel.outward.get(block=wait_s > 0, timeout=wait_s or None)
            except queue.Empty:
                return events
            if message["type"] == "interrupted":
                raise KeyboardInterrupt
            event = from_message(message)
            if isinstance(event, AttemptEnded) and self._running == (event.trial, event.attempt):
                self._running = None
            events.append(event)

    def close(self) -> None:
        """End the trial at its next report; a thread in the middle of a step ends only with the process."""
        self._channel.inward.put(_CLOSED)
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._running = None
