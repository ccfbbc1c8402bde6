"""A sweep's journal read in pieces: by whoever restores it, shows it or follows it."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.record.frames import Record, read_frames
from windlass.tune.errors import MissingError
from windlass.tune.folder import SweepFolder

__all__ = ["JournalStream", "no_sweep"]

_PIECE_BYTES = 256 << 10
"""What is parsed of it fits a processor's cache: reading in pieces of megabytes takes half as long again."""


class JournalStream:
    """The records of a journal from its beginning, and later what is new. Never changes the file.

    Args:
        position: a byte offset at which a record begins: where an earlier reader stopped.

    Attributes:
        position: offset behind the last whole record that was returned.
        num_damaged: lines that are not whole, passed over.
    """

    def __init__(self, folder: SweepFolder, position: int = 0) -> None:
        self.folder = folder
        self.position = position
        self.num_damaged = 0

    def poll(self) -> list[Record]:
        """Everything that was appended since the last call."""
        return [record for piece in self.pieces() for record in piece]

    def pieces(self) -> Iterator[list[Record]]:
        """The same in pieces of a quarter of a megabyte, so that a long journal need not be in memory at once."""
        try:
            file = open(self.folder.head_journal, "rb")  # noqa: SIM115 - closed below; missing is no error
        except FileNotFoundError:
            return
        with file:
            num_bytes = _PIECE_BYTES
            while True:
                file.seek(self.position)
                content = file.read(num_bytes)
                found, end, num_damaged = read_frames(content)
                self.position += end
                self.num_damaged += num_damaged
                if found:
                    yield found
                if len(content) < num_bytes:
                    return
                num_bytes = _PIECE_BYTES if end else num_bytes * 2  # a record longer than a piece


def no_sweep(folder: SweepFolder) -> MissingError:
    """There is nothing to read, or to restore."""
    hint = "`windlass sweep ls` lists the sweeps of this home"
    return MissingError(f"there is no sweep in {folder.path}", hint=hint, code="no-such-sweep")
