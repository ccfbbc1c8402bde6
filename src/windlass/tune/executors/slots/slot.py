"""The head's side of one slot: the run that is its worker's life, the life that speaks, and the attempt it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.core.clock import Clock
from windlass.launch import Run
from windlass.record.journal import JournalWriter
from windlass.tune.executors.channel import Message
from windlass.tune.executors.slots.files import ORDER, SlotFiles

__all__ = ["RunSlot"]


@dataclass(slots=True)
class RunSlot:
    """One slot as its head sees it.

    Attributes:
        incarnation: the life of the worker that counts; empty before the first.
        trial, attempt: what it was given and has not ended.
        heard_at: when it last said something, on this process's monotonic clock.
        is_gone: its run is over, or it was silent for too long.
        stale: it was silent while it had an attempt, which it does not know to be lost.
    """

    name: str
    run: Run
    incarnation: str = ""
    host: str = ""
    pid: int = 0
    trial: str = ""
    attempt: int = 0
    heard_at: float = 0.0
    is_gone: bool = False
    stale: bool = False
    _writer: JournalWriter | None = field(default=None, repr=False)

    @property
    def is_idle(self) -> bool:
        """Whether it would take a trial."""
        return bool(self.incarnation) and not self.trial and not self.is_gone

    def tell(self, message: Message, places: SlotFiles, head: str, clock: Clock) -> None:
        """Write an order to the life that counts now; on disk when this returns."""
        if self._writer is None:
            self._writer = JournalWriter(places.orders(self.name), head, clock)
        self._writer.append(ORDER, to=self.incarnation, message=message)

    def release(self) -> None:
        """Its attempt is over."""
        self.trial, self.attempt = "", 0

    def leave(self, *, is_silent: bool) -> None:
        """It is gone, for ever or until it is heard again."""
        self.stale = is_silent and bool(self.trial)
        self.is_gone = True
        self.release()

    def close(self) -> None:
        """Give the file of orders back."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
