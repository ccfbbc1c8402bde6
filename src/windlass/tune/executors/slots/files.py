"""Files between the head of a sweep and its slots, and their records.

    <sweep>/slots.json                           what workers need besides their orders, the trainable too
    <sweep>/orders/<slot>/<head>.wj              orders of a head to a slot: `order` {to, message}
    <sweep>/spools/<slot>.<incarnation>.wj       messages of one incarnation: `hello`, `message` {message}, `heartbeat`

One writer a file, all of them append-only lines in the frames of a journal, fsynced as they are written. A worker that
windlass started again is another incarnation; it takes no order that was meant for an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "HEARTBEAT",
    "HELLO",
    "MESSAGE",
    "ORDER",
    "SLOT_VARIABLE",
    "SWEEP_VARIABLE",
    "SlotFiles",
    "is_newer",
    "split_writer",
]

SWEEP_VARIABLE = "TUNE_SWEEP"
SLOT_VARIABLE = "TUNE_SLOT"
ORDER = "order"
HELLO = "hello"
MESSAGE = "message"
HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class SlotFiles:
    """Paths of one sweep's slots; makes nothing."""

    sweep: Path

    @property
    def work(self) -> Path:
        """Path of the work, as JSON."""
        return self.sweep / "slots.json"

    @property
    def spools(self) -> Path:
        """Folder of the workers' messages."""
        return self.sweep / "spools"

    def orders(self, slot: str) -> Path:
        """Folder of the heads' orders to a slot."""
        return self.sweep / "orders" / slot


def split_writer(writer: str) -> tuple[str, str]:
    """Return slot and incarnation of a spool's writer."""
    slot, _, incarnation = writer.rpartition(".")
    return slot, incarnation


def is_newer(incarnation: str, other: str) -> bool:
    """Return whether an incarnation started after another of the same slot; they begin with the attempt's number."""
    return incarnation > other
