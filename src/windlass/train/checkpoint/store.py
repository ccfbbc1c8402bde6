"""Checkpoint store in a folder or bucket, which all processes of a job use together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass import report
from windlass.record.manifest import Manifest
from windlass.report.checkpoints import begin_saving
from windlass.train.checkpoint.collectives import Collectives
from windlass.train.checkpoint.drafts import Draft, begin_draft, drop, recover, sweep
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.checkpoint.filling import fill, plain_values
from windlass.train.checkpoint.layout import Layout
from windlass.train.checkpoint.listing import (
    EXTRA_FOLDER,
    folder_name,
    list_committed,
    list_damaged,
    small_files,
)
from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.reading import CheckpointReader
from windlass.train.checkpoint.saving import AsyncSave, Holding, Save, Staging, share_out
from windlass.train.checkpoint.shards import StagedTensor
from windlass.train.checkpoint.tensors import LooseState, StateTensor, dtype_name, flatten
from windlass.train.errors import CheckpointError

if TYPE_CHECKING:
    from windlass.train.parallel.world import World

__all__ = ["FolderStore", "open_store"]


def open_store(folder: str, world: World, *, owner: str = "", verifies: bool = True) -> FolderStore:
    """Open the store in a local folder or at an fsspec URL. Collective: creates a process group for checkpoints.

    Args:
        folder: shared by all processes; created at the first save.
        owner: letters and digits that identify this run, so that it removes only its own stale saves; if empty, the
            windlass task's, or `run` without windlass.
        verifies: whether to compare tensors' checksums as they are read.

    Raises:
        PreconditionError: a package for this kind of URL is not installed.
    """
    return FolderStore(open_files(folder), Collectives(world), owner=owner or _default_owner(), verifies=verifies)


def _default_owner() -> str:
    if not report.is_active():
        return "run"
    place = report.place()
    return hashlib.sha256(f"{place.run}/{place.task}".encode()).hexdigest()[:12]


class FolderStore:
    """Checkpoints in a folder, each named `step-N`; implements `windlass.train.checkpoint.protocol.CheckpointStore`.

    At most one save runs at a time. Every call waits for it first, and raises its error on all processes, unless
    `wait` already raised it.
    """

    def __init__(self, files: Files, collectives: Collectives, *, owner: str, verifies: bool = True) -> None:
        self.files, self.collectives, self.owner, self.verifies = files, collectives, owner, verifies
        self._staging = Staging()
        self._pending: AsyncSave | None = None
        self._table: list[Holding] | None = None
        self._tables: Sequence[Sequence[Holding]] = ()
        self._places: list[int] = []

    @property
    def path(self) -> str:
        """Path or URL of the folder."""
        return self.files.path

    def committed(self) -> Sequence[Committed]:
        """Return the checkpoints with a valid marker, oldest first. Collective."""
        self.settle()
        items = self.collectives.together(self._list, on_all=False) or []
        told = self.collectives.share([[item.path, item.step, item.tokens, item.is_permanent] for item in items])
        return [
            Committed(path=path, step=step, tokens=tokens, is_permanent=is_permanent)
            for path, step, tokens, is_permanent in told
        ]

    def damaged(self) -> Sequence[str]:
        """Return the problems of damaged checkpoints that are newer than the newest undamaged one. Collective.

        Newest first.
        """
        lost = self.collectives.together(lambda: list_damaged(self.files), on_all=False) or []
        told: Sequence[str] = self.collectives.share([error.message for _, error in reversed(lost)])
        return told

    def save(
        self,
        state: Mapping[str, Any],
        trainer: Mapping[str, Any],
        *,
        step: int,
        tokens: int,
        config: Mapping[str, Any],
        is_permanent: bool,
        is_async: bool,
        extra: Mapping[str, bytes] | None = None,
    ) -> AsyncSave:
        """Write a checkpoint; see `CheckpointStore.save`. Blocks while this process copies what it writes.

        Args:
            extra: small files of rank 0 that are saved with it, such as the compiler's cache.

        Raises:
            CheckpointError: the previous save failed, the state cannot be saved, or the folder is not writable.
        """
        self.settle()
        saving = begin_saving()
        loose = self._plan(state)
        committed = Committed(
            path=self.files.at(folder_name(step)).path, step=step, tokens=tokens, is_permanent=is_permanent
        )
        small = small_files(committed, trainer, config, extra or {})
        draft = self._begin(folder_name(step))
        save = Save(
            draft=draft,
            collectives=self.collectives,
            tables=self._tables,
            parts=self._stage(loose, is_async=is_async),
            values=plain_values(loose),
            small=small,
            committed=committed,
            saving=saving,
        )
        self._pending = AsyncSave(save, is_async=is_async)
        if not is_async:
            self._pending.settle()
        return self._pending

    def load(self, path: str, state: Mapping[str, Any], *, is_strict: bool = True) -> Mapping[str, Any]:
        """Fill `state` in place and return the trainer's state; see `CheckpointStore.load`."""
        self.settle()
        reader = self.open(path)
        loose = self.collectives.together(lambda: flatten(state))
        assert loose is not None
        elsewhere = self._names_of_all(loose)

        def take() -> Mapping[str, Any]:
            fill(reader, loose, is_strict=is_strict, elsewhere=elsewhere)
            told: Mapping[str, Any] = reader.read_trainer()["state"]
            return told

        return self.collectives.together(take) or {}

    def drop(self, path: str) -> None:
        """Remove a checkpoint from this folder; see `CheckpointStore.drop`."""
        self.settle()
        name = path.rstrip("/").rpartition("/")[2]
        self.collectives.together(lambda: drop(self.files, name, self.owner), on_all=False)

    def open(self, path: str) -> CheckpointReader:
        """Open a checkpoint on rank 0 and broadcast its layout. Collective.

        Raises:
            CheckpointError: it is unfinished, truncated or changed; the message names the file.
        """
        files = open_files(path)
        reader = self.collectives.together(lambda: CheckpointReader.open(files, verifies=self.verifies), on_all=False)
        manifest = self.collectives.share(reader.manifest.to_data() if reader else None)
        layout = self.collectives.share_bytes(reader.layout.to_json() if reader else b"")
        if reader is not None:
            return reader
        return CheckpointReader(files, Manifest.from_data(manifest), Layout.from_json(layout), verifies=self.verifies)

    def read_extra(self, path: str, name: str) -> bytes | None:
        """Read a small file of a checkpoint; return None if there is no such file. Not collective."""
        reader = CheckpointReader.open(open_files(path))
        return reader.read_file(EXTRA_FOLDER + name) if EXTRA_FOLDER + name in reader.names() else None

    def settle(self) -> None:
        """Wait for the running save, and raise its error unless it has already been raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.settle()

    def _names_of_all(self, loose: LooseState) -> set[tuple[str, str]]:
        """Return the names that any process fills, because pipeline stages have different names."""
        names = sorted([*loose.tensors, *loose.values])
        digest = hashlib.sha256(repr(names).encode()).hexdigest()
        if self.collectives.everyone(digest == self.collectives.share(digest)):
            return set(names)
        gathered = self.collectives.gather(names) or []
        union = sorted({(section, name) for found in gathered for section, name in found})
        return {(section, name) for section, name in self.collectives.share(union)}

    def _list(self) -> list[Committed]:
        recover(self.files, self.owner)
        return list_committed(self.files)

    def _plan(self, state: Mapping[str, Any]) -> LooseState:
        """Plan what each process writes; processes exchange tables again only if the state's tensors have changed."""
        loose = self.collectives.together(lambda: flatten(state))
        assert loose is not None
        table = [_holding(tensor) for tensor in loose.tensors.values()]
        if self.collectives.everyone(table == self._table):
            return loose
        gathered = self.collectives.gather([held.to_data() for held in table])
        tables = [[Holding.from_data(data) for data in found] for found in gathered or []]
        plan = self.collectives.together(lambda: share_out(tables), on_all=False)
        self._places = self.collectives.share(plan)[self.collectives.rank]
        self._table, self._tables = table, tables
        return loose

    def _begin(self, name: str) -> Draft:
        """Remove saves that were killed and begin a draft on rank 0; return the draft on all processes."""
        draft = self.collectives.together(lambda: self._begin_here(name), on_all=False)
        token = self.collectives.share(draft.token if draft else "")
        return draft or Draft.of(self.files, name, token)

    def _begin_here(self, name: str) -> Draft:
        try:
            sweep(self.files, self.owner)
            return begin_draft(self.files, name, self.owner)
        except OSError as error:
            raise CheckpointError(
                f"cannot write a checkpoint to {self.path}: {error}",
                hint="set `checkpoint.folder` to a folder that all processes can write to",
                code="checkpoint-folder",
            ) from error

    def _stage(self, loose: LooseState, *, is_async: bool) -> dict[str, list[tuple[int, StagedTensor]]]:
        """Stage this process's parts by section, with their indices in the table, largest element size first."""
        tensors = list(loose.tensors.values())
        mine = [(place, tensors[place]) for place in self._places]
        mine.sort(key=lambda item: (item[1].section, -item[1].dtype.itemsize, item[1].name))
        staged = self._staging.take([tensor for _, tensor in mine], is_async=is_async)
        parts: dict[str, list[tuple[int, StagedTensor]]] = {}
        for (place, tensor), part in zip(mine, staged, strict=True):
            parts.setdefault(tensor.section, []).append((place, part))
        return parts


def _holding(tensor: StateTensor) -> Holding:
    return Holding(
        section=tensor.section,
        name=tensor.name,
        dtype=str(dtype_name(tensor.dtype)),
        shape=tensor.shape,
        box=tensor.box,
        num_bytes=tensor.box.num_elements * tensor.dtype.itemsize,
    )
