"""Saving of a checkpoint: divide the work between processes, stage, write, agree, commit.

An asynchronous save does this in a thread.

A partial checkpoint is never visible. On a file system, everything is written to a hidden folder, which is then renamed.
A bucket cannot rename, so the marker, which is written last, makes the checkpoint valid.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windlass.core.errors import WindlassError
from windlass.record.manifest import Manifest, ManifestEntry
from windlass.report.checkpoints import Saving, saving_ended, sync_reports
from windlass.train.checkpoint.collectives import Collectives
from windlass.train.checkpoint.drafts import Draft
from windlass.train.checkpoint.layout import Box, FileSums, Layout, Piece, TensorEntry
from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.reading import LAYOUT_FILE
from windlass.train.checkpoint.shards import StagedTensor, write_bytes, write_shard
from windlass.train.checkpoint.tensors import StateTensor
from windlass.train.errors import CheckpointError

__all__ = ["AsyncSave", "Holding", "Save", "Staging", "assemble", "share_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """State of a save once the tensors may change again; the rest of the save needs only files and messages.

    Attributes:
        parts: tensors that this process writes, by section, with their index in its table.
        tables: tensors that each process holds; on rank 0 only.
        values: values that are not tensors, by section.
        small: content of the small files, by name.
    """

    draft: Draft
    collectives: Collectives
    tables: Sequence[Sequence[Holding]]
    parts: Mapping[str, Sequence[tuple[int, StagedTensor]]]
    values: Mapping[str, Mapping[str, Any]]
    small: Mapping[str, bytes]
    committed: Committed
    saving: Saving

    def run(self) -> Committed:
        """Write this process's shards, agree with the others, and commit. Collective, blocking; may run in a thread.

        Raises:
            CheckpointError: any process failed; raised on every process, and nothing was committed.
        """
        written, failure = _attempt(self._write)
        reports = self.collectives.gather(written if failure is None else {"error": _describe(failure)})
        outcome = ""
        if reports is not None:
            errors = [f"rank {rank}: {found['error']}" for rank, found in enumerate(reports) if "error" in found]
            outcome = errors[0] if errors else ""
            if not errors:
                _, failure = _attempt(lambda: self._commit(reports))
                outcome = "" if failure is None else f"rank 0: {_describe(failure)}"
            if outcome:
                with contextlib.suppress(OSError):
                    self.draft.discard()
        outcome = self.collectives.share(outcome)
        if outcome:
            raise CheckpointError(
                f"the checkpoint of step {self.committed.step} was not saved: {outcome}",
                hint="the previous checkpoint is kept; check free space and the file system",
                code="checkpoint-folder",
            ) from failure
        if reports is not None:
            self._tell()
        return self.committed

    def _write(self) -> dict[str, Any]:
        entries, sums, pieces = [], {}, []
        for section, parts in self.parts.items():
            if parts:
                name = f"{section}-{self.collectives.rank:05d}.safetensors"
                shard = write_shard(self.draft.files, name, [part for _, part in parts])
                entries.append([shard.entry.size, shard.entry.sha256, name])
                sums[name] = shard.sums.crc32
                pieces += [[place, name, start] for (place, _), start in zip(parts, shard.starts, strict=True)]
        return {"entries": entries, "sums": sums, "pieces": pieces, "values": self.values}

    def _commit(self, reports: Sequence[Mapping[str, Any]]) -> None:
        files = self.draft.files
        layout = Layout(
            world=len(reports),
            tensors=assemble(self.tables, [[tuple(piece) for piece in report["pieces"]] for report in reports]),
            values=_merged(report["values"] for report in reports),
            files={name: FileSums(crc32=tuple(found)) for report in reports for name, found in report["sums"].items()},
        )
        entries = [ManifestEntry(name, size, sha256) for report in reports for size, sha256, name in report["entries"]]
        for name, content in {**self.small, LAYOUT_FILE: layout.to_json()}.items():
            entries.append(write_bytes(files, name, content))
        entries.sort(key=lambda entry: entry.path)
        manifest = Manifest(tuple(entries), self.committed.step, time.time())
        text = json.dumps(manifest.to_data(), indent=1, ensure_ascii=True)
        sync_reports()
        self.draft.commit(text.encode("ascii") + b"\n")

    def _tell(self) -> None:
        """Record the checkpoint in windlass's journal, if there is one."""
        try:
            saving_ended(self.saving, self.committed.path, step=self.committed.step)
        except (OSError, WindlassError) as error:
            sys.stderr.write(f"windlass: {self.committed.path} is saved, but writing the journal failed ({error})\n")


def _merged(values: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Merge the plain values from all processes; where names are equal, the lowest rank's value is used."""
    merged: dict[str, dict[str, Any]] = {}
    for found in values:
        for section, part in found.items():
            merged[section] = {**part, **merged.get(section, {})}
    return merged


def _attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  sent to all processes, then raised
        return None, error


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


class Staging:
    """Host buffers that saves reuse, as large as what this process writes, and pinned if there is a GPU."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str, tuple[int, ...]], Tensor] = {}

    def take(self, tensors: Sequence[StateTensor], *, is_async: bool) -> list[StagedTensor]:
        """Copy the tensors to write, so that they may change afterwards.

        With `is_async` false, they may change only after the write.

        Cost: one copy; none for contiguous host tensors in a synchronous save. All copies from a GPU are queued, then
        waited for together.
        """
        parts = [StagedTensor(name=item.name, box=item.box, tensor=self._copy(item, is_async)) for item in tensors]
        for device in {item.local.device for item in tensors if item.local.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return parts

    def _copy(self, item: StateTensor, is_async: bool) -> Tensor:
        local = item.local
        if local.device.type == "cpu" and local.is_contiguous() and not is_async:
            return local
        key = (item.section, item.name, item.box.offsets)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            is_pinned = local.device.type == "cuda"
            buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu", pin_memory=is_pinned)
            self._buffers[key] = buffer
        buffer.copy_(local, non_blocking=True)
        return buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Box of a tensor as held by a process.

    Attributes:
        num_bytes: size of the box.
    """

    section: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    num_bytes: int

    def to_data(self) -> list[Any]:
        """Return the JSON form."""
        return [self.section, self.name, self.dtype, self.shape, self.box.offsets, self.box.shape, self.num_bytes]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Holding:
        """Parse what `to_data` returns."""
        section, name, dtype, shape, offsets, held, num_bytes = data
        box = Box(tuple(offsets), tuple(held))
        return cls(section=section, name=name, dtype=dtype, shape=tuple(shape), box=box, num_bytes=num_bytes)


def share_out(tables: Sequence[Sequence[Holding]]) -> list[list[int]]:
    """Assign to each process the entries in its table that it writes.

    If several processes hold a box, the least loaded one writes it; large boxes are assigned first.

    Raises:
        CheckpointError: processes disagree on a tensor's shape or type, or their parts do not fill it.
    """
    holders: dict[tuple[str, str, Box], list[tuple[int, int]]] = {}
    for rank, table in enumerate(tables):
        for place, held in enumerate(table):
            if held.box.num_elements:
                holders.setdefault((held.section, held.name, held.box), []).append((rank, place))
    _check_whole(tables, holders)
    load, plan = [0] * len(tables), [[] for _ in tables]  # type: list[int], list[list[int]]
    first = {key: tables[found[0][0]][found[0][1]] for key, found in holders.items()}
    for key in sorted(holders, key=lambda key: (-first[key].num_bytes, key[0], key[1], key[2].offsets)):
        rank, place = min(holders[key], key=lambda holder: (load[holder[0]], holder[0]))
        load[rank] += first[key].num_bytes
        plan[rank].append(place)
    return [sorted(places) for places in plan]


def _check_whole(
    tables: Sequence[Sequence[Holding]], holders: Mapping[tuple[str, str, Box], Sequence[tuple[int, int]]]
) -> None:
    kinds: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
    for rank, table in enumerate(tables):
        for held in table:
            kind = (held.dtype, held.shape)
            if kinds.setdefault((held.section, held.name), kind) != kind:
                other = kinds[held.section, held.name]
                raise CheckpointError(
                    f"`{held.section}.{held.name}` is {_kind(kind)} on rank {rank} and {_kind(other)} on another",
                    code="checkpoint-state",
                )
    filled: dict[tuple[str, str], int] = dict.fromkeys(kinds, 0)
    for section, name, box in holders:
        filled[section, name] += box.num_elements
    for (section, name), (_, shape) in kinds.items():
        if filled[section, name] != math.prod(shape):
            raise CheckpointError(
                f"the processes have {filled[section, name]} elements of `{section}.{name}`, which has "
                f"{math.prod(shape)} in {list(shape)}",
                hint="all processes that share the model must save together",
                code="checkpoint-state",
            )


def _kind(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]} {list(kind[1])}"


def assemble(
    tables: Sequence[Sequence[Holding]], written: Sequence[Sequence[tuple[int, str, int]]]
) -> dict[str, dict[str, TensorEntry]]:
    """Build the tensors of the layout from the tables and each process's writes: (index in its table, file, start)."""
    pieces: dict[tuple[str, str], list[Piece]] = {}
    kinds: dict[tuple[str, str], Holding] = {}
    for table, places in zip(tables, written, strict=True):
        for held in table:
            kinds.setdefault((held.section, held.name), held)
        for place, file, start in places:
            held = table[place]
            pieces.setdefault((held.section, held.name), []).append(Piece(box=held.box, file=file, start=start))
    tensors: dict[str, dict[str, TensorEntry]] = {}
    for key, held in kinds.items():
        found = sorted(pieces.get(key, []), key=lambda piece: piece.box.offsets)
        entry = TensorEntry(dtype=held.dtype, shape=held.shape, pieces=tuple(found))
        tensors.setdefault(held.section, {})[held.name] = entry
    return tensors


class AsyncSave:
    """Save in progress, whose thread keeps the process alive until it ends.

    Hashing, writing and waiting for other processes release the GIL, so a thread is
    enough: benches/bench_train_checkpoints.py measures how much it slows the steps.
    """

    def __init__(self, save: Save, *, is_async: bool) -> None:
        self._save = save
        self._result: Committed | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._thread: threading.Thread | None = None
        if is_async:
            self._thread = threading.Thread(target=self._run, name="windlass-checkpoint")
            self._thread.start()
        else:
            self._run()

    def is_done(self) -> bool:
        """Return whether the save has finished or failed."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Committed:
        """Block until the save is committed; raise the save's error on every process."""
        if self._thread is not None:
            self._thread.join()
        self._is_told = True
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def settle(self) -> None:
        """Wait like `wait`, but do not raise an error that has already been raised."""
        if self._thread is not None:
            self._thread.join()
        if not self._is_told:
            self.wait()

    def _run(self) -> None:
        try:
            self._result = self._save.run()
        except BaseException as error:  # noqa: BLE001  raised again by `wait`
            self._error = error
