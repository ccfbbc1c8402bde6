"""Transfer of checkpoints for slots that cannot access the sweep's storage.

Events keep their order: events after a checkpoint wait until the head has it, so that the controller never receives a
checkpoint that it could not restore.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from windlass.tune.executors.protocol import AttemptReported, AttemptSaved, Event, Order, StartAttempt

__all__ = ["PIECE_BYTES", "CheckpointTransfer", "TransferSteps", "bring", "fetch"]


class CheckpointTransfer:
    """Transfer of checkpoints for one slot, one at a time.

    Args:
        queue: queues an order for the slot.
        call: calls a method of the slot's disk; its result goes to `returned`.
        disk: folder of the slot's disk.
        storage: the sweep's storage.
    """

    def __init__(
        self,
        queue: Callable[[StartAttempt | Order], None],
        call: Callable[..., None],
        disk: str,
        storage: str,
    ) -> None:
        self._queue, self._call, self._disk, self._storage = queue, call, disk, storage
        self._steps: TransferSteps | None = None
        self._waiting_events: deque[Event] = deque()
        self._start: StartAttempt | None = None
        self._orders: list[StartAttempt | Order] = []

    # ------------------------------------------------------------------------------------------------ to the slot

    def tell(self, order: StartAttempt | Order) -> None:
        """Forward an order.

        A start waits for its checkpoint, and later orders wait for the start.
        """
        if self._start is not None:
            self._orders.append(order)
        elif isinstance(order, StartAttempt) and order.restore_from:
            self._start = order
            self._steps = bring(order.restore_from, f"{self._disk}/restored/{order.trial}-{order.attempt}")
            self._go_on(None)
        else:
            self._queue(order)

    # ---------------------------------------------------------------------------------------------- from the slot

    def receive(self, events: list[Event]) -> list[Event]:
        """Add events, and return all events, old and new, that may go to the controller now."""
        self._waiting_events += events
        return self._release()

    def returned(self, result: Any) -> list[Event]:
        """Continue with the result of a call to the slot's disk; return the events that may go to the controller now."""
        self._go_on(result)
        return self._release()

    def failed(self) -> list[Event] | None:
        """Handle a failed call to the slot's disk; return None if an attempt cannot start because of it."""
        assert self._steps is not None
        self._steps.close()
        self._steps = None
        if self._start is not None:
            return None
        event = _without_checkpoint(self._waiting_events.popleft())
        return ([] if event is None else [event]) + self._release()

    def give_up(self) -> list[Event]:
        """Return the waiting events of a lost slot, without the checkpoints that were lost with it."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        left = [_without_checkpoint(event) for event in self._waiting_events]
        self._waiting_events.clear()
        return [event for event in left if event is not None]

    def _release(self) -> list[Event]:
        free: list[Event] = []
        while self._waiting_events and self._steps is None:
            path = _checkpoint_of(self._waiting_events[0])
            if path.startswith(f"{self._disk}/"):
                self._steps = fetch(path, self._storage)
                self._go_on(None)
            else:
                free.append(self._waiting_events.popleft())
        return free

    def _go_on(self, result: Any) -> None:
        assert self._steps is not None
        try:
            call = self._steps.send(result)
        except StopIteration as end:
            self._steps = None
            self._arrived(end.value)
        else:
            self._call(*call)

    def _arrived(self, path: str) -> None:
        if self._start is None:
            self._waiting_events[0] = _with_checkpoint(self._waiting_events[0], path)
            return
        self._queue(replace(self._start, restore_from=path))
        self._start = None
        for order in self._orders:
            self._queue(order)
        self._orders.clear()


def _checkpoint_of(event: Event) -> str:
    if isinstance(event, AttemptReported):
        return event.saved
    return event.path if isinstance(event, AttemptSaved) else ""


def _with_checkpoint(event: Event, path: str) -> Event:
    if isinstance(event, AttemptReported):
        return replace(event, saved=path)
    return replace(event, path=path) if isinstance(event, AttemptSaved) else event


def _without_checkpoint(event: Event) -> Event | None:
    return None if isinstance(event, AttemptSaved) else _with_checkpoint(event, "")


PIECE_BYTES = 4 << 20

TransferSteps = Generator[tuple[Any, ...], Any, str]
"""Transfer step that yields calls of `SlotDisk` and returns the checkpoint's path at the destination."""


def fetch(path: str, storage: str) -> TransferSteps:
    """Download a checkpoint from the slot's disk to the head's storage, atomically."""
    trial, name = path.split("/")[-2:]
    target = Path(storage.removeprefix("file://"), trial, name)
    if target.exists():
        return str(target)
    files = yield "list_files", path
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    try:
        for file, num_bytes in files:
            (fresh / file).parent.mkdir(parents=True, exist_ok=True)
            with (fresh / file).open("wb") as sink:
                for offset in range(0, num_bytes, PIECE_BYTES):
                    sink.write((yield "read", path, file, offset, PIECE_BYTES))
                sink.flush()
                os.fsync(sink.fileno())
        fresh.chmod(0o755)
        with contextlib.suppress(FileExistsError):  # another head was faster
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    yield "keep_only", path
    return str(target)


def bring(path: str, folder: str) -> TransferSteps:
    """Upload a checkpoint to the slot's disk.

    Missing files are skipped, and the trial reports them.
    """
    yield "clear", folder
    root = Path(path.removeprefix("file://"))
    for source in sorted(root.rglob("*")):
        if not source.is_file():
            continue
        name, num_bytes = str(source.relative_to(root)), source.stat().st_size
        with source.open("rb") as file:
            for offset in range(0, max(num_bytes, 1), PIECE_BYTES):
                yield "write", folder, name, offset, file.read(PIECE_BYTES)
    return folder
