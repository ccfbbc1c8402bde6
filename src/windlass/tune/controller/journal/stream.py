"""Incremental reader of a sweep's journal, used to restore, show and follow a sweep."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.record.frames import Record, read_frames
from windlass.tune.errors import MissingError
from windlass.tune.folder import SweepFolder

__all__ = ["JournalStream", "no_sweep"]

_PIECE_BYTES = 256 << 10
"""Piece size that fits the processor's cache when parsed; megabyte pieces take 1.5 times as long."""


class JournalStream:
    """Reader that returns a journal's records, and later the new ones. Never changes the file.

    Args:
        position: byte offset of a record to start at, such as where an earlier reader stopped.

    Attributes:
        position: offset after the last complete record that was returned.
        num_damaged: number of incomplete lines that were skipped.
    """

    def __init__(self, folder: SweepFolder, position: int = 0) -> None:
        self.folder = folder
        self.position = position
        self.num_damaged = 0

    def poll(self) -> list[Record]:
        """Return the records appended since the last call."""
        return [record for piece in self.pieces() for record in piece]

    def pieces(self) -> Iterator[list[Record]]:
        """Yield the new records in pieces of 256 KiB of the journal, for journals larger than memory."""
        try:
            file = open(self.folder.head_journal, "rb")  # noqa: SIM115 - closed below; a missing file is not an error
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
    """Return the error for a folder that contains no sweep."""
    hint = "`windlass sweep ls` lists the sweeps of this home"
    return MissingError(f"there is no sweep in {folder.path}", hint=hint, code="sweep-not-found")
