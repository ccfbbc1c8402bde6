"""One save, from a plan that all processes share to a marker that rank 0 writes last.

Nobody may see half a checkpoint. On a file system all is written to a hidden folder, which gets its name by one rename. In
a bucket nothing can be renamed: there the marker itself, the last object, makes the checkpoint one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.core.errors import WindlassError
from windlass.record.manifest import Entry, Manifest
from windlass.report.checkpoints import Saving, saving_ended, sync_reports
from windlass.train.checkpoint.collectives import Collectives
from windlass.train.checkpoint.layout import FileSums, Layout
from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.reading import LAYOUT_FILE
from windlass.train.checkpoint.storage.shards import StagedTensor, write_bytes, write_shard
from windlass.train.checkpoint.storage.stale_saves import Draft
from windlass.train.checkpoint.write_plan import Holding, assemble
from windlass.train.errors import CheckpointError

__all__ = ["Save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """All that a save needs once the tensors may change again; only files and messages from here on.

    Attributes:
        parts: by section, what this process writes, with each part's place in its table.
        tables: what each process holds; on rank 0.
        values: by section, what is no tensor.
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
        """Write this process's shards, agree, commit. Collective, blocking; may run in a thread.

        Raises:
            CheckpointError: on every process, when any of them failed; nothing was committed.
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
                hint="the one before it stays; make room or see what the file system says",
                code="checkpoint-not-saved",
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
        entries = [Entry(name, size, sha256) for report in reports for size, sha256, name in report["entries"]]
        for name, content in {**self.small, LAYOUT_FILE: layout.to_json()}.items():
            entries.append(write_bytes(files, name, content))
        entries.sort(key=lambda entry: entry.path)
        manifest = Manifest(tuple(entries), self.committed.step, time.time())
        text = json.dumps(manifest.to_data(), indent=1, ensure_ascii=True)
        sync_reports()
        self.draft.commit(text.encode("ascii") + b"\n")

    def _tell(self) -> None:
        """Record it where windlass launched this; without a journal it is found by its folder all the same."""
        try:
            saving_ended(self.saving, self.committed.path, step=self.committed.step)
        except (OSError, WindlassError) as error:
            sys.stderr.write(f"windlass: {self.committed.path} is saved, but the journal cannot be written ({error})\n")


def _merged(values: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The plain values of all processes; of one name, the lowest rank's."""
    merged: dict[str, dict[str, Any]] = {}
    for found in values:
        for section, part in found.items():
            merged[section] = {**part, **merged.get(section, {})}
    return merged


def _attempt(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  told to all processes, then raised
        return None, error


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"
