"""Reader for torch's distributed checkpoints (DCP), such as OLMo-core's: named tensors, read on demand.

    found = read_dcp("gs://bucket/step1000/model_and_optim")
    found["model.embeddings.weight"].read()

Their `.metadata` is a pickle, which `dcp_metadata` reads as data. Each piece of a tensor is a torch file, loaded
with `weights_only`, or plain bytes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windlass.train.checkpoint.dcp_metadata import PickledObject, UnsafeMetadataError, parse_metadata
from windlass.train.checkpoint.files import Files, open_files
from windlass.train.checkpoint.layout import Box, overlap
from windlass.train.errors import CheckpointError

__all__ = ["DcpCheckpoint", "DcpTensor", "read_dcp"]

_FILE = ".metadata"
_MAX_DIMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blob:
    """Location of a value's bytes: a file, an offset and a length."""

    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DcpTensor:
    """Tensor that can be read as a whole or in part.

    Attributes:
        pieces: boxes that fill the tensor, and the location of each box's bytes.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    files: Files
    pieces: tuple[tuple[Box, _Blob], ...]

    def read(self, box: Box | None = None) -> Tensor:
        """Read the tensor, or a box of it, into host memory, one piece at a time.

        Raises:
            CheckpointError: a piece is missing, damaged, of another shape, or not a plain tensor.
        """
        wanted = box or Box.whole(self.shape)
        result = torch.empty(wanted.shape, dtype=self.dtype)
        num_filled = 0
        for held, blob in self.pieces:
            shared = overlap(held, wanted)
            if shared is not None:
                result[_slices(shared, wanted)] = self._load(held, blob)[_slices(shared, held)]
                num_filled += shared.num_elements
        if num_filled != wanted.num_elements:
            raise self._refused(f"its pieces contain {num_filled} of {wanted.num_elements} elements")
        return result

    def _load(self, held: Box, blob: _Blob) -> Tensor:
        size = held.num_elements * self.dtype.itemsize
        content = _content(self.files, blob, size)
        if len(content) < size:
            raise self._refused(f"{len(content)} bytes are too few for shape {list(held.shape)}")
        if len(content) == size and not content.startswith(b"PK\x03\x04"):  # bare bytes, as safetensors stores them
            return torch.frombuffer(bytearray(content), dtype=self.dtype).view(held.shape)
        found = _torch_load(self.files, blob, content)
        if not isinstance(found, Tensor) or tuple(found.shape) != held.shape or found.dtype != self.dtype:
            raise self._refused(f"a piece in {blob.file} is not {self.dtype} {list(held.shape)}")
        return found.detach()

    def _refused(self, problem: str) -> CheckpointError:
        return _refused(self.files, f"`{self.name}`: {problem}")


class DcpCheckpoint(Mapping[str, DcpTensor]):
    """Tensors in a checkpoint by name, and its other values.

    Attributes:
        value_names: names of other values, such as settings of the optimiser.
    """

    def __init__(self, files: Files, tensors: Mapping[str, DcpTensor], values: Mapping[str, _Blob]) -> None:
        self.path = files.path
        self._files, self._tensors, self._values = files, tensors, values

    def __getitem__(self, name: str) -> DcpTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def value_names(self) -> tuple[str, ...]:
        """Return the names of the values that are not tensors."""
        return tuple(self._values)

    def value(self, name: str) -> Any:
        """Read a value that is not a tensor: a number, a string, or plain containers of these.

        Raises:
            CheckpointError: it is damaged, or of another type.
        """
        blob = self._values[name]
        return _torch_load(self._files, blob, _content(self._files, blob, blob.length))


def read_dcp(folder: str) -> DcpCheckpoint:
    """Open a folder or URL that has torch's `.metadata`; tensors are read later, one by one.

    Raises:
        CheckpointError: there is none, it is damaged, or it holds more than metadata (`foreign-checkpoint`).
    """
    files = open_files(folder)
    try:
        metadata = parse_metadata(files.read(_FILE))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(
            f"{folder} holds no {_FILE}",
            hint="pass the folder that torch.distributed.checkpoint wrote; OLMo-core calls it `model_and_optim`",
            code="no-checkpoint",
        ) from error
    except UnsafeMetadataError as error:
        raise _refused(files, f"{_FILE}: {error}") from error
    try:
        return _understood(files, metadata)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refused(files, f"{_FILE} does not have torch's format: {error}") from error


def _understood(files: Files, metadata: PickledObject) -> DcpCheckpoint:
    blobs: dict[tuple[str, tuple[int, ...]], _Blob] = {}
    for index, info in metadata.fields["storage_data"].items():
        blobs[_text(index.get("fqn")), _sizes(index.get("offset") or ())] = _blob(info)
    tensors, values = {}, {}
    for name, entry in metadata.fields["state_dict_metadata"].items():
        if entry.kind == "BytesStorageMetadata":
            values[_text(name)] = blobs[name, ()]
        else:
            tensors[_text(name)] = _tensor(files, name, entry, blobs)
    return DcpCheckpoint(files, tensors, values)


def _tensor(
    files: Files, name: str, entry: PickledObject, blobs: Mapping[tuple[str, tuple[int, ...]], _Blob]
) -> DcpTensor:
    dtype, shape = getattr(torch, _text(entry.fields["properties"].fields["dtype"])), _sizes(entry.fields["size"])
    pieces = []
    for chunk in entry.fields["chunks"]:
        box = Box(_sizes(chunk.fields["offsets"]), _sizes(chunk.fields["sizes"]))
        ends = [offset + size for offset, size in zip(box.offsets, box.shape, strict=True)]
        if any(end > size for end, size in zip(ends, shape, strict=True)):
            raise ValueError(f"a piece of {name!r} exceeds its shape {list(shape)}")
        if box.num_elements:
            pieces.append((box, blobs[name, box.offsets]))
    num_held, num_bytes = sum(box.num_elements for box, _ in pieces), sum(blob.length for _, blob in pieces)
    if num_held != math.prod(shape) or num_held * dtype.itemsize > num_bytes:
        raise ValueError(f"{name!r} of shape {list(shape)} does not match its {num_bytes} bytes")
    return DcpTensor(name=name, dtype=dtype, shape=shape, files=files, pieces=tuple(pieces))


def _blob(info: PickledObject) -> _Blob:
    if info.get("transform_descriptors"):
        raise ValueError(f"pieces are transformed by {info.get('transform_descriptors')}, which is not supported")
    file = _text(info.fields["relative_path"])
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError(f"{file!r} is outside the checkpoint")
    offset, length = _sizes((info.fields["offset"], info.fields["length"]))
    return _Blob(file=file, offset=offset, length=length)


def _content(files: Files, blob: _Blob, size: int) -> bytes:
    """Read the bytes of a value, at most as many as the file holds."""
    try:
        held = files.size(blob.file)
        if blob.offset + blob.length > held:
            raise _refused(files, f"{blob.file} has {held} bytes; expected at least {blob.offset + blob.length}")
        return files.read(blob.file, blob.offset, blob.offset + blob.length)
    except FileNotFoundError as error:
        raise _refused(files, f"{blob.file} is missing ({size} bytes)") from error


def _torch_load(files: Files, blob: _Blob, content: bytes) -> Any:
    """Load the content of a `torch.save` file that has only tensors and plain containers."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of errors for a broken file
        reason = str(error).partition("\n")[0]
        raise _refused(files, f"{blob.file} at byte {blob.offset}: {reason}") from error


def _refused(files: Files, problem: str) -> CheckpointError:
    return CheckpointError(
        f"cannot read the checkpoint {files.path}: {problem}",
        hint="only plain tensors are loaded from foreign checkpoints; download it again from a source you trust",
        code="foreign-checkpoint",
    )


def _slices(shared: Box, within: Box) -> tuple[slice, ...]:
    return tuple(
        slice(offset - begin, offset - begin + size)
        for offset, size, begin in zip(shared.offsets, shared.shape, within.offsets, strict=True)
    )


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a name, found {type(value).__name__}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or len(values) > _MAX_DIMS:
        raise TypeError("invalid list of sizes")
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ValueError("a size is not a non-negative integer")
    return tuple(values)
