"""Reading of a checkpoint: marker, layout, and any box of any tensor, with verified checksums."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windlass.core.json_text import decode_json, decode_object
from windlass.record.manifest import FOLDER_MANIFEST, Manifest
from windlass.train.checkpoint.files import Files
from windlass.train.checkpoint.layout import BLOCK_BYTES, Box, Layout, Piece, TensorEntry, overlap
from windlass.train.checkpoint.tensors import DTYPES, item_bytes
from windlass.train.errors import CheckpointError

__all__ = [
    "CONFIG_FILE",
    "LAYOUT_FILE",
    "MAX_READ_BYTES",
    "TRAINER_FILE",
    "CheckpointReader",
    "Cut",
    "cuts_of",
    "damaged",
    "read_marker",
    "runs_of",
    "tensors_by_name",
]

MAX_READ_BYTES = 32 * BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows of a piece in a file, and the destination for some of their columns.

    Attributes:
        start, end: bytes of the file.
        shape: of the rows.
        columns: (first, number) for each dimension after the rows.
        target: destination, with the state's type and device.
    """

    file: str
    start: int
    end: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    columns: tuple[tuple[int, int], ...]
    target: Tensor

    def copy(self, content: bytearray, start: int) -> None:
        """Copy the values out of data that was read from byte `start` of the file on."""
        count = math.prod(self.shape)
        rows = torch.frombuffer(content, dtype=torch.uint8, count=self.end - self.start, offset=self.start - start)
        if rows.storage_offset() % self.dtype.itemsize or rows.data_ptr() % self.dtype.itemsize:
            rows = rows.clone()  # a view of a wider type must be aligned
        typed = rows.view(self.dtype)[:count].view(self.shape)
        for dim, (first, number) in enumerate(self.columns, 1):
            typed = typed.narrow(dim, first, number)
        self.target.copy_(typed)


def cuts_of(entry: TensorEntry, box: Box, target: Tensor) -> Iterator[Cut]:
    """Yield the reads that fill `target`, a box of a tensor; each reads whole rows of a piece, up to `MAX_READ_BYTES`."""
    for piece in entry.pieces:
        shared = overlap(piece.box, box)
        if shared is not None:
            view = target
            for dim, (offset, size) in enumerate(zip(shared.offsets, shared.shape, strict=True)):
                view = view.narrow(dim, offset - box.offsets[dim], size)
            yield from _rows(entry, piece, shared, view)


def _rows(entry: TensorEntry, piece: Piece, shared: Box, target: Tensor) -> Iterator[Cut]:
    size, dtype = item_bytes(entry.dtype), DTYPES[entry.dtype]
    if not shared.shape:
        yield Cut(
            file=piece.file,
            start=piece.start,
            end=piece.start + size,
            dtype=dtype,
            shape=(),
            columns=(),
            target=target,
        )
        return
    inner = piece.box.shape[1:]
    row_bytes = math.prod(inner) * size
    step = max(1, MAX_READ_BYTES // row_bytes)
    columns = tuple(
        (offset - held, number)
        for offset, held, number in zip(shared.offsets[1:], piece.box.offsets[1:], shared.shape[1:], strict=True)
    )
    first = shared.offsets[0] - piece.box.offsets[0]
    for begin in range(0, shared.shape[0], step):
        end = min(begin + step, shared.shape[0])
        yield Cut(
            file=piece.file,
            start=piece.start + (first + begin) * row_bytes,
            end=piece.start + (first + end) * row_bytes,
            dtype=dtype,
            shape=(end - begin, *inner),
            columns=columns,
            target=target[begin:end],
        )


def runs_of(cuts: Iterable[Cut]) -> list[Sequence[Cut]]:
    """Group cuts that are neighbours in a file into reads of up to `MAX_READ_BYTES`, including small gaps."""
    runs: list[list[Cut]] = []
    for cut in sorted(cuts, key=lambda cut: (cut.file, cut.start)):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last[0].file == cut.file
            and cut.start - last[-1].end <= BLOCK_BYTES
            and cut.end - last[0].start <= MAX_READ_BYTES
        ):
            last.append(cut)
        else:
            runs.append([cut])
    return list(runs)


LAYOUT_FILE = "layout.json"
TRAINER_FILE = "trainer.json"
CONFIG_FILE = "config.json"
_NUM_READERS = 4


def read_marker(files: Files) -> Manifest:
    """Read the manifest, which is written last and marks the checkpoint as complete.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        content = files.read(FOLDER_MANIFEST)
    except (FileNotFoundError, NotADirectoryError) as error:
        is_begun = bool(files.names())
        message = (
            f"{files.path} is not a complete checkpoint: it has no {FOLDER_MANIFEST}"
            if is_begun
            else (f"no checkpoint at {files.path}")
        )
        raise CheckpointError(
            message, hint="pass a folder `step-N` with a manifest.json", code="checkpoint-unfinished"
        ) from error
    try:
        return Manifest.from_data(decode_json(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(files, FOLDER_MANIFEST, str(error)) from error


def damaged(files: Files, name: str, problem: str) -> CheckpointError:
    """Return the error for a damaged file."""
    return CheckpointError(
        f"{files.path}/{name} is damaged: {problem}",
        hint="load an earlier checkpoint, or copy this one again",
        code="checkpoint-damaged",
    )


class CheckpointReader:
    """Reader for a committed checkpoint.

    Attributes:
        manifest: all its files.
        layout: all its tensors.
    """

    def __init__(self, files: Files, manifest: Manifest, layout: Layout, *, verifies: bool = True) -> None:
        self.files, self.manifest, self.layout, self.verifies = files, manifest, layout, verifies
        self._entries = {entry.path: entry for entry in manifest.entries}

    @classmethod
    def open(cls, files: Files, *, verifies: bool = True) -> CheckpointReader:
        """Open a checkpoint after checking its marker, the size of each file, and its layout.

        Args:
            verifies: whether to compare tensors' checksums as they are read; sizes are always compared.

        Raises:
            CheckpointError: it is unfinished, truncated or changed; the message names the file.
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
        """Read a small file and verify its sha256.

        Raises:
            CheckpointError: it is not part of the checkpoint, or damaged.
        """
        if name not in self._entries:
            raise damaged(self.files, name, "it is not in the manifest")
        content = self.files.read(name)
        if hashlib.sha256(content).hexdigest() != self._entries[name].sha256:
            raise damaged(self.files, name, "its content has changed (sha256)")
        return content

    def read_object(self, name: str) -> dict[str, Any]:
        """Read the JSON object from a small file.

        Raises:
            CheckpointError: it is not part of the checkpoint, or damaged.
        """
        try:
            return decode_object(self.read_file(name))
        except ValueError as error:
            raise damaged(self.files, name, str(error)) from error

    def read_trainer(self) -> dict[str, Any]:
        """Read the trainer's file, which has an object as `state`; raises CheckpointError like `read_object`."""
        found = self.read_object(TRAINER_FILE)
        if not isinstance(found.get("state"), dict):
            raise damaged(self.files, TRAINER_FILE, "it has no `state`")
        return found

    def names(self) -> list[str]:
        """Return the names of all files in the checkpoint except the marker."""
        return list(self._entries)

    def fill(self, entry: TensorEntry, box: Box, target: Tensor) -> None:
        """Copy a box of a tensor into `target`, which has the same shape but may differ in type and device.

        Raises:
            CheckpointError: a file is damaged, or the pieces do not fill the box.
        """
        self.fill_all([(entry, box, target)])

    def fill_all(self, wanted: Iterable[tuple[TensorEntry, Box, Tensor]]) -> None:
        """Copy boxes of tensors into targets with concurrent reads, using at most 128 MiB of memory.

        Raises:
            CheckpointError: a file is damaged, or the pieces do not fill a box.
        """
        cuts: list[Cut] = []
        for entry, box, target in wanted:
            found = [shared.num_elements for piece in entry.pieces if (shared := overlap(piece.box, box))]
            if sum(found) != box.num_elements:
                problem = f"its pieces contain {sum(found)} of {box.num_elements} elements"
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
        """Read bytes from a file; return them and the offset of the first.

        Reads whole blocks if it verifies them.
        """
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
        """Check that every piece lies within its tensor and within one of the checkpoint's files."""
        for name, sums in self.layout.files.items():
            if name not in self._entries or len(sums.crc32) != -(-self._entries[name].size // BLOCK_BYTES):
                raise damaged(self.files, LAYOUT_FILE, f"its checksums do not match {name!r}")
        for section, entries in self.layout.tensors.items():
            for name, entry in entries.items():
                if entry.dtype not in DTYPES:
                    raise damaged(self.files, LAYOUT_FILE, f"`{section}.{name}` has the unknown type {entry.dtype!r}")
                if not _fills(entry):
                    raise damaged(self.files, LAYOUT_FILE, f"the pieces of `{section}.{name}` do not fill it")
                for piece in entry.pieces:
                    file = self._entries.get(piece.file)
                    end = piece.start + piece.box.num_elements * item_bytes(entry.dtype)
                    if file is None or piece.file not in self.layout.files or not 0 <= piece.start <= end <= file.size:
                        raise damaged(self.files, LAYOUT_FILE, f"`{section}.{name}` is out of bounds of {piece.file!r}")


def _fills(entry: TensorEntry) -> bool:
    """Return whether the pieces lie within the tensor and together have as many elements as it has."""
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
    """Return a layout's tensors by section and name."""
    return {(section, name): entry for section, entries in layout.tensors.items() for name, entry in entries.items()}
