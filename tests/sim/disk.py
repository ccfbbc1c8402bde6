"""The shared disk of a run: journal files as bytes, writers that may be torn, and the ledger the cores write to.

The bytes are the shipped frames; opening, cutting and following are what `record.journal` and `supervise.ledger` do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from tests.sim.node import Node
from tests.sim.world import World
from windlass.core.clock import Clock
from windlass.record import frames
from windlass.record.frames import Record
from windlass.record.state import RunFacts, TaskFacts

__all__ = ["Crash", "Disk", "Fate", "LockedError", "VirtualJournalView", "VirtualWriter"]


class Crash(BaseException):
    """The process that was writing is gone; no handler of the product may catch it."""


class LockedError(Exception):
    """Another living process writes this file."""


class Fate(Enum):
    """What becomes of one append and of the process that makes it."""

    WRITTEN = "written"
    CRASH_BEFORE = "crash-before"
    TORN = "torn"
    CRASH_AFTER = "crash-after"
    SLOW = "slow"
    STALL = "stall"


class Disk:
    """Journal files by writer.

    Args:
        fate_of: what happens at the n-th append (from 0) of a supervisor or client.
        on_record: told of every record once it is durable.
        on_stall: told until when a stall lasts that begins with an append.
    """

    def __init__(
        self,
        world: World,
        fate_of: Callable[[int, str, str], Fate],
        on_record: Callable[[Record], None],
        on_stall: Callable[[float], None],
    ) -> None:
        self.world = world
        self.files: dict[str, bytearray] = {}
        self.holders: dict[str, object] = {}
        self.version = 0
        self.num_appends = 0
        self.acknowledged: list[Record] = []
        self.crashes: set[tuple[str, str]] = set()
        self._decoded: dict[tuple[str, int, bytes], tuple[list[Record], int]] = {}
        self._fate_of = fate_of
        self._on_record = on_record
        self.on_stall = on_stall

    def next_fate(self, writer: str, kind: str) -> Fate:
        """The fate of the append that is about to be made."""
        self.num_appends += 1
        fate = self._fate_of(self.num_appends - 1, writer, kind)
        if fate is not Fate.WRITTEN:
            self.crashes.add((kind, fate.value))
        return fate

    def write(self, name: str, line: bytes, record: Record) -> None:
        """Append a whole record."""
        self.files[name] += line
        self.version += 1
        self._on_record(record)

    def read(self, name: str, offset: int) -> tuple[list[Record], int]:
        """Return the records from an offset on and where they end; what many read is decoded once."""
        content = bytes(self.files[name][offset:])
        key = (name, offset, content)
        if key not in self._decoded:
            records, end, _ = frames.read_frames(content)
            self._decoded[key] = (records, offset + end)
        return self._decoded[key]

    def tear(self, name: str, line: bytes) -> None:
        """Append a prefix of a record, as a crash in the middle of a write leaves it."""
        self.files[name] += line[: self.world.random.randrange(1, len(line))]
        self.version += 1


class VirtualWriter:
    """One writer's pen.

    Args:
        holder: the process that keeps the file locked.
        is_faulty: whether appends may crash their process.

    Raises:
        LockedError: another holder has it.
    """

    def __init__(self, disk: Disk, name: str, clock: Clock, holder: object, *, is_faulty: bool = True) -> None:
        if disk.holders.setdefault(name, holder) is not holder:
            raise LockedError(name)
        self._disk, self._clock, self._is_faulty, self._holder = disk, clock, is_faulty, holder
        self.name = name
        content = disk.files.setdefault(name, bytearray())
        records, end, _ = frames.read_frames(bytes(content))
        if end < len(content):
            del content[end:]
            disk.version += 1
        self._seq = records[-1].seq if records else 0
        self.delay_s = 0.0
        self.node: Node | None = None
        self._hanging: list[tuple[bytes, Record]] = []

    @property
    def is_hanging(self) -> bool:
        """Whether a write has not reached the server yet, and its process waits for it."""
        return bool(self._hanging)

    def append(self, kind: str, **data: object) -> Record:
        """Append one record; durable when this returns.

        Raises:
            Crash: the process is gone; before, in the middle of, or after the write.
        """
        record = Record(kind, self.name, self._seq + 1, self._clock.now(), data)
        line = frames.encode(record)
        fate = self._disk.next_fate(self.name, kind) if self._is_faulty else Fate.WRITTEN
        self._disk.world.log(
            "%s: append %s %s%s", self.name, kind, data, "" if fate is Fate.WRITTEN else f" [{fate.value}]"
        )
        if fate is Fate.CRASH_BEFORE:
            raise Crash
        if fate is Fate.TORN:
            self._disk.tear(self.name, line)
            raise Crash
        self._seq += 1
        if fate is Fate.STALL and self.node is not None:
            self._hang(self.node)
        if self._is_held_up(fate):
            self._hanging.append((line, record))
            return record
        self._disk.write(self.name, line, record)
        if fate is Fate.CRASH_AFTER:
            raise Crash
        self._disk.acknowledged.append(record)
        if fate is Fate.SLOW:
            self.delay_s = self._disk.world.uniform(0.2, 12.0)
        return record

    def _hang(self, node: Node) -> None:
        """The shared file system stalls for this node while it writes."""
        seconds = self._disk.world.uniform(3.0, 130.0)
        self._disk.world.log("fault: the disk of %s stalls for %.1f s", node.name, seconds)
        node.stall(seconds)
        self._disk.on_stall(node.stalled_until)
        self.delay_s = node.stalled_until - self._disk.world.now

    def _is_held_up(self, fate: Fate) -> bool:
        """Whether the write lands only when the stall is over, and not at once with its answer late."""
        if self._hanging:
            return True
        is_late = fate is Fate.STALL and self.node is not None and self._disk.world.chance(0.6)
        if is_late:
            self._disk.world.at(self.delay_s, self._land)
        return is_late

    def _land(self) -> None:
        hanging, self._hanging = self._hanging, []
        for line, record in hanging:
            self._disk.write(self.name, line, record)

    def close(self) -> None:
        """Unlock the file, as the end of the process does; what hangs may still reach the server."""
        if self._hanging and self._disk.world.chance(0.5):
            self._land()
        self._hanging = []
        if self._disk.holders.get(self.name) is self._holder:
            del self._disk.holders[self.name]


class Reader:
    """Follows all journal files."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._offsets: dict[str, int] = {}
        self._version = -1

    def poll(self) -> list[Record]:
        """Records that are new since the last call."""
        if self._version == self._disk.version:
            return []
        self._version = self._disk.version
        found: list[Record] = []
        for name in sorted(self._disk.files):
            offset = self._offsets.get(name, 0)
            if len(self._disk.files[name]) > offset:
                records, self._offsets[name] = self._disk.read(name, offset)
                found.extend(records)
        return found


class VirtualJournalView:
    """The ledger of `supervise.journal` over the virtual disk."""

    def __init__(
        self, disk: Disk, task: str, writer: str, clock: Clock, holder: object, on_record: Callable[[Record], None]
    ) -> None:
        self._disk, self._task, self._on_record = disk, task, on_record
        self.writer = VirtualWriter(disk, writer, clock, holder)
        self._reader = Reader(disk)
        self.facts = RunFacts()
        self.history = self._reader.poll()
        for record in self.history:
            self.facts.apply(record)

    def refresh(self) -> None:
        """Take in what is new; the virtual disk remembers nothing old."""
        self.poll()

    def widen(self) -> None:
        """It reads the whole run always."""

    def narrow(self) -> None:
        """It reads the whole run always."""

    def poll(self) -> None:
        """Take in what is new."""
        for record in self._reader.poll():
            self.facts.apply(record)
            self._on_record(record)

    def task(self) -> TaskFacts:
        """The facts of this task, fresh from the disk."""
        self.poll()
        return self.facts.task(self._task)

    def append(self, kind: str, **data: object) -> Record:
        """Record a fact durably."""
        record = self.writer.append(kind, task=self._task, **data)
        if self.writer.is_hanging:
            self.facts.apply(record)
        return record

    def close(self) -> None:
        """Close the pen."""
        self.writer.close()
