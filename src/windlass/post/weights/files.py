"""Weight versions as files in a folder: on a disk that engines share, or in the machine's memory (`/dev/shm`).

    FOLDER/v00000012/manifest.json         names, pieces with checksums, the probe, and the version it is relative to
    FOLDER/v00000012/weights.safetensors   all weights, an ordinary safetensors file
    FOLDER/v00000013/weights.delta         what changed since version 12
    FOLDER/base/v00000000/...              a frozen model, if versions are adapters of it: a process reads it once

A version appears by the renaming of its folder, so it is whole or absent. Publishing and fetching read and write a
piece at a time; both need at most two buckets of memory besides the weights. A publisher that stores changes keeps a file
with the weights of its last version, because it has no second copy of them in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from windlass.core.codec import decode, encode
from windlass.core.json_text import decode_object
from windlass.post.rollout.engine import EngineError
from windlass.post.weights.pieces import (
    Content,
    WeightPiece,
    apply_change,
    change_between,
    checksum,
    gather,
    pieces_of,
    scatter,
)
from windlass.post.weights.store import AdapterBase, Probe, WeightRef, check_names, check_version, missing
from windlass.train.checkpoint.tensors import DTYPES, dtype_name, item_bytes

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FileWeightStore"]

_MANIFEST = "manifest.json"
_LATEST = ".latest"
_BASE = "base"
_PIECES_PER_BUCKET = 4
"""A piece is a fraction of a bucket, because its old content and the indices of its changes are in memory with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """Description of a version.

    Attributes:
        base: version that the changes are relative to; None if every piece is whole.
        tensors: name, type and shape of each tensor, in the order of the pieces.
        pieces: kind of change, start and size of its bytes in the file, and the checksum of the resulting piece.
        adapter: what the weights are merged into; None: nothing, they are those of the model.
    """

    ref: WeightRef
    base: WeightRef | None
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    piece_bytes: int
    pieces: tuple[tuple[str, int, int, int], ...]
    probe: Probe | None
    adapter: AdapterBase | None

    @property
    def file_name(self) -> str:
        return "weights.safetensors" if self.base is None else "weights.delta"


class FileWeightStore:
    """Versions in a folder, for one publisher and any number of processes that fetch.

    Args:
        bucket_bytes: twice this is the memory that publishing and fetching take.
        has_deltas: whether to store what changed where that is smaller. It makes publishing slower where most weights
            change, as they do in float32 with most optimisers.
        whole_every: versions between two whole ones, the most that an engine without any has to read.
    """

    def __init__(
        self, folder: Path, *, bucket_bytes: int = 16 << 20, has_deltas: bool = False, whole_every: int = 16
    ) -> None:
        self.folder = folder
        self._piece_bytes = max(bucket_bytes // _PIECES_PER_BUCKET, 8)
        self._whole_every = whole_every if has_deltas else 1
        self._last: _Manifest | None = None
        self._num_deltas = 0
        self._frozen: tuple[WeightRef, dict[str, Tensor]] | None = None

    # ------------------------------------------------------------------------------------------------------- learner

    def publish_base(self, weights: Mapping[str, Tensor]) -> WeightRef:
        """Store the weights of a frozen model, which adapters are published relative to."""
        return FileWeightStore(self.folder / _BASE).publish(weights, 0)

    def publish(
        self,
        weights: Mapping[str, Tensor],
        version: int,
        probe: Probe | None = None,
        *,
        adapter: AdapterBase | None = None,
    ) -> WeightRef:
        """Store weights; see `WeightStore.publish`. What is not needed any more is left for `retire`.

        Args:
            adapter: the weights are those of an adapter, which `fetch` merges into this.
        """
        check_version(version)
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, path in self._folders():
            if number >= version:
                self._remove(path, is_forced=True)
        # Larger elements first, so that a safetensors file can be memory-mapped.
        order = sorted(weights, key=lambda name: -weights[name].element_size())
        tensors = tuple((name, _type_of(name, weights[name]), tuple(weights[name].shape)) for name in order)
        last = self._last if self._num_deltas + 1 < self._whole_every else None
        if last is not None and (last.tensors != tensors or last.ref.version >= version):
            last = None
        self._last = None  # until this one is complete, the file of the last version's weights is not
        draft = self.folder / f".v{version:08d}.{os.getpid()}.{os.urandom(4).hex()}"
        draft.mkdir()
        try:
            manifest = self._write(draft, tensors, weights, version, last, probe, adapter)
            os.rename(draft, self._path(version))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._last, self._num_deltas = manifest, 0 if manifest.base is None else self._num_deltas + 1
        return manifest.ref

    def _write(
        self,
        draft: Path,
        tensors: tuple[tuple[str, str, tuple[int, ...]], ...],
        weights: Mapping[str, Tensor],
        version: int,
        last: _Manifest | None,
        probe: Probe | None,
        adapter: AdapterBase | None,
    ) -> _Manifest:
        header = _header(tensors)
        entries: list[tuple[str, int, int, int]] = []
        with open(draft / "content", "wb", buffering=0) as file, self._open_latest() as latest:
            start, place = _write_all(file, header), 0
            for piece in pieces_of(_sizes(tensors), self._piece_bytes):
                new = gather(piece, weights)
                kind, change = "whole", new.data.cast("B")
                if last is not None and latest is not None:
                    kind, found = change_between(_read(latest, place, piece), new)
                    change = change if kind == "whole" else memoryview(found)
                if latest is not None:
                    latest.seek(place)
                    _write_all(latest, new.data.cast("B"))
                entries.append((kind, start, _write_all(file, change), checksum(new)))
                start, place = start + len(change), place + piece.num_bytes
        is_whole = all(kind == "whole" for kind, *_ in entries)
        base = None if last is None or is_whole else last.ref
        data = {
            "version": version,
            "base": base and asdict(base),
            "tensors": tensors,
            "piece_bytes": self._piece_bytes,
            "pieces": entries,
            "probe": probe and encode(probe),
            "adapter": adapter and encode(adapter),
        }
        content = json.dumps(data, separators=(",", ":")).encode()
        manifest = _parsed(content, draft)
        os.rename(draft / "content", draft / manifest.file_name)
        (draft / _MANIFEST).write_bytes(content)
        return manifest

    @contextlib.contextmanager
    def _open_latest(self) -> Iterator[BinaryIO | None]:
        """Open the file with the weights of the last version, if changes are stored."""
        if self._whole_every == 1:
            yield None
            return
        descriptor = os.open(self.folder / _LATEST, os.O_RDWR | os.O_CREAT, 0o644)
        with open(descriptor, "r+b", buffering=0) as file:
            yield file

    def retire(self, keep: Collection[int]) -> None:
        """Remove versions but for these, the newest, those they are relative to, and those that a process reads."""
        folders = dict(self._folders())
        needed: set[int] = set()
        for number in {*keep, max(folders, default=-1)} & folders.keys():
            step: int | None = number
            while step is not None and step not in needed:
                needed.add(step)
                base = self._at(folders[step]).base if step in folders else None
                step = None if base is None else base.version
        for number in folders.keys() - needed:
            self._remove(folders[number])

    def _remove(self, path: Path, *, is_forced: bool = False) -> None:
        """Remove a version; if a process reads it, only if forced, and then that process may fail."""
        with contextlib.suppress(FileNotFoundError), open(path / _MANIFEST, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not is_forced:
                    return
            gone = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
            os.rename(path, gone)
            shutil.rmtree(gone)

    # ------------------------------------------------------------------------------------------------------- engines

    def latest(self) -> WeightRef | None:
        """Return the newest version; reads the folder."""
        for _, path in sorted(self._folders(), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # removed since
                return self._at(path).ref
        return None

    def empty(self, ref: WeightRef) -> dict[str, Tensor]:
        """Return tensors with the names, types and shapes of a version, to be filled by `fetch`."""
        with contextlib.ExitStack() as stack:
            manifest, _ = self._held(ref, stack)
        if manifest.adapter is not None:
            return FileWeightStore(self.folder / _BASE).empty(manifest.adapter.base)
        return {name: torch.zeros(shape, dtype=DTYPES[dtype]) for name, dtype, shape in manifest.tensors}

    def fetch(self, ref: WeightRef, into: Mapping[str, Tensor], *, have: WeightRef | None = None) -> Probe | None:
        """Overwrite tensors with a version; see `WeightStore.fetch`.

        An adapter is merged: the first time its base is read too, and adapted layers' weights are kept on the host.
        """
        with contextlib.ExitStack() as stack:
            newest = self._held(ref, stack)[0]
            if newest.adapter is None:
                return self._fetch(ref, into, have)
            if have != ref:
                own = {name: torch.zeros(shape, dtype=DTYPES[dtype]) for name, dtype, shape in newest.tensors}
                self._fetch(ref, own, None)
                self._merge(newest.adapter, own, into, is_held=have is not None)
        return newest.probe

    def _merge(
        self, adapter: AdapterBase, own: dict[str, Tensor], into: Mapping[str, Tensor], *, is_held: bool
    ) -> None:
        """Overwrite adapted layers with their frozen weights and the update, and what is trained besides."""
        from windlass.train.model.adapters import merge  # lazy: 0.3 s, and only adapters need it

        if not is_held or self._frozen is None or self._frozen[0] != adapter.base:
            FileWeightStore(self.folder / _BASE).fetch(adapter.base, into)
            names = [f"{layer}.weight" for layer in adapter.scales]
            self._frozen = (adapter.base, {name: into[name].detach().to("cpu", copy=True) for name in names})
        for layer, scale in adapter.scales.items():
            target = into[f"{layer}.weight"]
            weight_OI = self._frozen[1][f"{layer}.weight"].to(target.device)
            a_RI, b_OR = (own.pop(f"{layer}.{part}").to(target.device) for part in ("lora_a", "lora_b"))
            target.copy_(merge(weight_OI, a_RI, b_OR, scale))
        for name, value in own.items():
            into[name].copy_(value)

    def _fetch(self, ref: WeightRef, into: Mapping[str, Tensor], have: WeightRef | None) -> Probe | None:
        with contextlib.ExitStack() as stack:
            newest = self._held(ref, stack)[0]
            check_names({name: shape for name, _, shape in newest.tensors}, into, ref)
            dtypes = {name: DTYPES[dtype] for name, dtype, _ in newest.tensors}
            is_equal = all(into[name].dtype == dtype for name, dtype in dtypes.items())
            have = have if is_equal else None
            if have == ref:
                return newest.probe
            chain = self._chain(ref, have, stack)
            is_relative = have is not None and chain[-1][0].base == have
            try:
                pieces = pieces_of(_sizes(newest.tensors), newest.piece_bytes)
                for index, (piece, entry) in enumerate(zip(pieces, newest.pieces, strict=True)):
                    content = gather(piece, into) if is_relative else _empty(piece)
                    content = _after_changes(content, chain, index)
                    if checksum(content) != entry[3]:
                        raise ValueError(f"piece {index} has another checksum")
                    scatter(piece, content, into, dtypes)
            except (ValueError, KeyError, IndexError, OSError) as error:
                raise _damaged(ref, error) from error
        return newest.probe

    def _chain(
        self, ref: WeightRef, have: WeightRef | None, stack: contextlib.ExitStack
    ) -> list[tuple[_Manifest, BinaryIO]]:
        """Open the versions from `ref` back to the one after `have`, or to a whole one."""
        chain: list[tuple[_Manifest, BinaryIO]] = []
        step: WeightRef | None = ref
        while step is not None and step != have:
            manifest, path = self._held(step, stack)
            try:
                file = stack.enter_context((path / manifest.file_name).open("rb", buffering=0))
            except OSError as error:
                raise _damaged(ref, error) from error
            chain.append((manifest, file))
            step = manifest.base
        return chain

    def _held(self, ref: WeightRef, stack: contextlib.ExitStack) -> tuple[_Manifest, Path]:
        """Return a version's description; the version is not removed while the stack is open."""
        path = self._path(ref.version)
        try:
            file = stack.enter_context((path / _MANIFEST).open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(path / _MANIFEST)):
                raise missing(ref)
            content = file.read()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise missing(ref) from error
        manifest = _parsed(content, path)
        if manifest.ref != ref:
            found = f"version {manifest.ref.version} ({manifest.ref.digest[:8]})"
            raise EngineError(
                f"{path} contains {found} and not version {ref.version} ({ref.digest[:8]})",
                hint="start the engine again with the newest version",
            )
        return manifest, path

    def _at(self, path: Path) -> _Manifest:
        return _parsed((path / _MANIFEST).read_bytes(), path)

    def _path(self, version: int) -> Path:
        return self.folder / f"v{version:08d}"

    def _folders(self) -> list[tuple[int, Path]]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [(int(name[1:]), self.folder / name) for name in names if name[:1] == "v" and name[1:].isdigit()]


def _after_changes(content: Content, chain: Sequence[tuple[_Manifest, BinaryIO]], index: int) -> Content:
    """Apply the changes of a piece, from the last one that replaces it as a whole."""
    kinds = [manifest.pieces[index][0] for manifest, _ in chain]
    first = kinds.index("whole") if "whole" in kinds else len(chain) - 1
    for manifest, file in reversed(chain[: first + 1]):
        kind, start, size, _ = manifest.pieces[index]
        is_whole = kind == "whole" and size == content.nbytes
        change = content.data.cast("B") if is_whole else memoryview(bytearray(size))
        if os.preadv(file.fileno(), [change], start) != size:
            raise ValueError(f"version {manifest.ref.version} ends within piece {index}")
        content = content if is_whole else apply_change(kind, bytes(change), content)
    return content


def _empty(piece: WeightPiece) -> Content:
    return np.empty(piece.num_bytes // piece.item_bytes, dtype=f"u{piece.item_bytes}")


def _read(file: BinaryIO, place: int, piece: WeightPiece) -> Content:
    content = os.pread(file.fileno(), piece.num_bytes, place)
    return np.frombuffer(content, dtype=f"u{piece.item_bytes}")


def _write_all(file: BinaryIO, content: bytes | memoryview) -> int:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
    return len(content)


def _type_of(name: str, tensor: Tensor) -> str:
    found = dtype_name(tensor.dtype)
    if found is None:
        raise EngineError(
            f"`{name}` has type {tensor.dtype}, which cannot be stored", hint="publish floating point weights"
        )
    return found


def _sizes(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> list[tuple[str, int, int]]:
    return [(name, int(np.prod(shape, dtype=np.int64)), item_bytes(dtype)) for name, dtype, shape in tensors]


def _header(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """Return the header of a safetensors file. Source: safetensors, "Format"."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for (name, dtype, shape), (_, count, size) in zip(tensors, _sizes(tensors), strict=True):
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + count * size]}
        start += count * size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _parsed(content: bytes, path: Path) -> _Manifest:
    """Return the manifest of a version. Raises EngineError if it is damaged."""
    try:
        data = decode_object(content)
        probe = data["probe"] and decode(Probe, data["probe"])
        return _Manifest(
            ref=WeightRef(version=data["version"], digest=_digest(content)),
            base=data["base"] and WeightRef(**data["base"]),
            tensors=tuple((name, dtype, tuple(shape)) for name, dtype, shape in data["tensors"]),
            piece_bytes=data["piece_bytes"],
            pieces=tuple((kind, start, size, crc) for kind, start, size, crc in data["pieces"]),
            probe=probe,
            adapter=data["adapter"] and decode(AdapterBase, data["adapter"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            f"weights in {path} are damaged: {error}", hint="start the engine again with the newest version"
        ) from error


def _damaged(ref: WeightRef, error: Exception) -> EngineError:
    return EngineError(
        f"weights of version {ref.version} are damaged: {error}", hint="start the engine again with the newest version"
    )
