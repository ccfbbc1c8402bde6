"""Files through which a sweep's head and its slots communicate, and the records in them.

    <sweep>/slots.json                           data for workers besides their orders, with the trainable
    <sweep>/orders/<slot>/<head>.wj              orders of a head to a slot: `order` {to, message}
    <sweep>/spools/<slot>.<incarnation>.wj       messages of one incarnation: `hello`, `message` {message}, `heartbeat`

Each file has one writer and is append-only, in journal frames, and each write is fsynced. A restarted worker is a new
incarnation; it ignores orders for earlier ones.
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
    """Paths of a sweep's slots. Creates no files."""

    sweep: Path

    @property
    def work(self) -> Path:
        """Path of the data that workers share, as JSON."""
        return self.sweep / "slots.json"

    @property
    def spools(self) -> Path:
        """Folder for the workers' messages."""
        return self.sweep / "spools"

    def orders(self, slot: str) -> Path:
        """Folder for the heads' orders to a slot."""
        return self.sweep / "orders" / slot


def split_writer(writer: str) -> tuple[str, str]:
    """Return the slot and the incarnation from the name of a spool's writer."""
    slot, _, incarnation = writer.rpartition(".")
    return slot, incarnation


def is_newer(incarnation: str, other: str) -> bool:
    """Return whether an incarnation of a slot is newer than another; both begin with an attempt number."""
    return incarnation > other
