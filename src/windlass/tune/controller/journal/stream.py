"""Reader of a sweep's journal, in pieces: for restoring, showing and following it."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.record.frames import Record, read_frames
from windlass.tune.errors import MissingError
from windlass.tune.folder import SweepFolder

__all__ = ["JournalStream", "no_sweep"]

_PIECE_BYTES = 256 << 10
"""Piece that fits a processor's cache when parsed: pieces of megabytes take half as long again."""


class JournalStream:
    """Records of a journal from its beginning, and later the new ones. Never changes the file.

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
        """Read everything that was appended since the last call."""
        return [record for piece in self.pieces() for record in piece]

    def pieces(self) -> Iterator[list[Record]]:
        """Read the same in pieces of a quarter of a megabyte, for journals larger than memory."""
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
    """Make the error for a folder without a sweep."""
    hint = "`windlass sweep ls` lists the sweeps of this home"
    return MissingError(f"there is no sweep in {folder.path}", hint=hint, code="no-such-sweep")
