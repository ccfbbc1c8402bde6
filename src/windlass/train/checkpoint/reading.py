"""Reading a checkpoint: its marker, its layout, and any box of any tensor, with every byte checked that is read."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from windlass.core.json_text import decode_json, decode_object
from windlass.record.manifest import FOLDER_MANIFEST, Manifest
from windlass.train.checkpoint.layout import BLOCK_BYTES, Box, Layout, TensorEntry, overlap
from windlass.train.checkpoint.read_plan import Cut, cuts_of, runs_of
from windlass.train.checkpoint.storage.files import Files
from windlass.train.checkpoint.tensors import DTYPES, item_bytes
from windlass.train.errors import CheckpointError

__all__ = [
    "CONFIG_FILE",
    "LAYOUT_FILE",
    "TRAINER_FILE",
    "CheckpointReader",
    "damaged",
    "read_marker",
    "tensors_by_name",
]

LAYOUT_FILE = "layout.json"
TRAINER_FILE = "trainer.json"
CONFIG_FILE = "config.json"
_NUM_READERS = 4


def read_marker(files: Files) -> Manifest:
    """What was committed, by the marker that is written last.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        content = files.read(FOLDER_MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        is_begun = bool(files.names())
        message = (
            f"{files.path} was never committed: it has no {FOLDER_MANIFEST}"
            if is_begun
            else (f"there is no checkpoint at {files.path}")
        )
        raise CheckpointError(
            message, hint="name a folder `step-N` that holds a manifest.json", code="checkpoint-unfinished"
        ) from error
    try:
        return Manifest.from_data(decode_json(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(files, FOLDER_MANIFEST, str(error)) from error


def damaged(files: Files, name: str, problem: str) -> CheckpointError:
    """The error for a file that is not as it was committed."""
    return CheckpointError(
        f"{files.path}/{name} is damaged: {problem}",
        hint="load the checkpoint before it, or copy this one anew",
        code="checkpoint-damaged",
    )


class CheckpointReader:
    """A committed checkpoint.

    Attributes:
        manifest: all its files.
        layout: all its tensors.
    """

    def __init__(self, files: Files, manifest: Manifest, layout: Layout, *, verifies: bool = True) -> None:
        self.files, self.manifest, self.layout, self.verifies = files, manifest, layout, verifies
        self._entries = {entry.path: entry for entry in manifest.entries}

    @classmethod
    def open(cls, files: Files, *, verifies: bool = True) -> CheckpointReader:
        """Look at a checkpoint: its marker, the size of each file, its layout.

        Args:
            verifies: whether the checksums of tensors are compared as they are read; sizes always are.

        Raises:
            CheckpointError: it is unfinished, torn or changed; names the file.
        """
        reader = cls(files, read_marker(files), Layout(world=0, tensors={}), verifies=verifies)
        reader._check_sizes()
        content = reader.read_file(LAYOUT_FILE)
        try:
            reader.layout = Layout.from_json(content)
        except ValueError as error:
            raise damaged(files, LAYOUT_FILE, str(error)) from error
        reader._check_layout()
        return reader

    def read_file(self, name: str) -> bytes:
        """A small file, compared with its sha256.

        Raises:
            CheckpointError: it is not part of the checkpoint, or damaged.
        """
        if name not in self._entries:
            raise damaged(self.files, name, "the manifest does not name it")
        content = self.files.read(name)
        if hashlib.sha256(content).hexdigest() != self._entries[name].sha256:
            raise damaged(self.files, name, "it has other content (sha256)")
        return content

    def read_object(self, name: str) -> dict[str, Any]:
        """The object in a small file.

        Raises:
            CheckpointError: it is not part of the checkpoint, or damaged.
        """
        try:
            return decode_object(self.read_file(name))
        except ValueError as error:
            raise damaged(self.files, name, str(error)) from error

    def read_trainer(self) -> dict[str, Any]:
        """The trainer's file, whose `state` is an object; raises CheckpointError as `read_object`."""
        found = self.read_object(TRAINER_FILE)
        if not isinstance(found.get("state"), dict):
            raise damaged(self.files, TRAINER_FILE, "it holds no `state`")
        return found

    def names(self) -> list[str]:
        """All files of the checkpoint but the marker."""
        return list(self._entries)

    def fill(self, entry: TensorEntry, box: Box, target: Tensor) -> None:
        """Copy a box of a tensor into `target`, which has the box's shape and may be of another type or device.

        Raises:
            CheckpointError: a file is damaged, or the pieces do not fill the box.
        """
        self.fill_all([(entry, box, target)])

    def fill_all(self, wanted: Iterable[tuple[TensorEntry, Box, Tensor]]) -> None:
        """Copy boxes of tensors into targets, several reads at a time; at most 128 MiB of memory.

        Raises:
            CheckpointError: a file is damaged, or the pieces do not fill a box.
        """
        cuts: list[Cut] = []
        for entry, box, target in wanted:
            found = [shared.num_elements for piece in entry.pieces if (shared := overlap(piece.box, box))]
            if sum(found) != box.num_elements:
                problem = f"its pieces hold {sum(found)} of {box.num_elements} elements"
                raise damaged(self.files, LAYOUT_FILE, problem)
            cuts += cuts_of(entry, box, target)
        runs = runs_of(cuts)
        if len(runs) < 2:
            for run in runs:
                self._read_run(run)
            return
        with ThreadPoolExecutor(_NUM_READERS) as pool:
            list(pool.map(self._read_run, runs))

    def _read_run(self, run: Sequence[Cut]) -> None:
        start, end = run[0].start, max(cut.end for cut in run)
        content, place = self._bytes(run[0].file, start, end)
        for cut in run:
            cut.copy(content, place)

    def _bytes(self, name: str, start: int, end: int) -> tuple[bytearray, int]:
        """Bytes of a file and where they begin; whole blocks are read where they are to be compared."""
        if not self.verifies:
            return self._exactly(name, start, end), start
        first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        content = self._exactly(name, first * BLOCK_BYTES, min(last * BLOCK_BYTES, self._entries[name].size))
        sums = self.layout.files[name].crc32
        for number, block in enumerate(_blocks(content), first):
            if zlib.crc32(block) != sums[number]:
                place = number * BLOCK_BYTES
                raise damaged(self.files, name, f"bytes {place} to {place + len(block)} have changed (crc32)")
        return content, first * BLOCK_BYTES

    def _exactly(self, name: str, start: int, end: int) -> bytearray:
        content = bytearray(end - start)
        count = self.files.read_into(name, start, memoryview(content))
        if count != end - start:
            raise damaged(self.files, name, f"it ends at byte {start + count}")
        return content

    def _check_sizes(self) -> None:
        for entry in self.manifest.entries:
            try:
                size = self.files.size(entry.path)
            except FileNotFoundError as error:
                raise damaged(self.files, entry.path, "it is missing") from error
            if size != entry.size:
                raise damaged(self.files, entry.path, f"it has {size} bytes instead of {entry.size}")

    def _check_layout(self) -> None:
        """Every piece lies in its tensor and in a file of this checkpoint, so that nothing is read from elsewhere."""
        for name, sums in self.layout.files.items():
            if name not in self._entries or len(sums.crc32) != -(-self._entries[name].size // BLOCK_BYTES):
                raise damaged(self.files, LAYOUT_FILE, f"its checksums are not those of {name!r}")
        for section, entries in self.layout.tensors.items():
            for name, entry in entries.items():
                if entry.dtype not in DTYPES:
                    raise damaged(self.files, LAYOUT_FILE, f"`{section}.{name}` is of an unknown type {entry.dtype!r}")
                if not _fills(entry):
                    raise damaged(self.files, LAYOUT_FILE, f"`{section}.{name}` is not filled by its pieces")
                for piece in entry.pieces:
                    file = self._entries.get(piece.file)
                    end = piece.start + piece.box.num_elements * item_bytes(entry.dtype)
                    if file is None or piece.file not in self.layout.files or not 0 <= piece.start <= end <= file.size:
                        raise damaged(self.files, LAYOUT_FILE, f"`{section}.{name}` lies outside of {piece.file!r}")


def _fills(entry: TensorEntry) -> bool:
    """Whether the pieces of a tensor lie in it, and have as many elements together."""
    for piece in entry.pieces:
        places = (piece.box.offsets, piece.box.shape, entry.shape)
        if len({len(place) for place in places}) != 1:
            return False
        if any(offset < 0 or size < 0 or offset + size > whole for offset, size, whole in zip(*places, strict=True)):
            return False
    return sum(piece.box.num_elements for piece in entry.pieces) == Box.whole(entry.shape).num_elements


def _blocks(content: bytearray) -> Iterator[memoryview]:
    view = memoryview(content)
    for place in range(0, len(view), BLOCK_BYTES):
        yield view[place : place + BLOCK_BYTES]


def tensors_by_name(layout: Layout) -> Mapping[tuple[str, str], TensorEntry]:
    """All tensors of a layout by section and name."""
    return {(section, name): entry for section, entries in layout.tensors.items() for name, entry in entries.items()}
