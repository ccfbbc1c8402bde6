"""Training state as named tensors: the boxes that this process holds, and their bytes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from windlass.train.checkpoint.layout import Box
from windlass.train.errors import CheckpointError

__all__ = ["DTYPES", "LooseState", "StateTensor", "bytes_of", "dtype_name", "flatten", "item_bytes", "set_value"]

# Source: safetensors, "Format", list of dtypes.
DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SECTION = re.compile(r"[A-Za-z0-9_]+")
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """Tensor of a state, as held by this process.

    Attributes:
        shape: of the whole tensor.
        box: the part that this process holds; may be empty.
        local: data of the box; shares memory with the original tensor.
    """

    section: str
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    box: Box
    local: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseState:
    """Nested state, flattened by section and name.

    Attributes:
        values: values that are not tensors, with the mapping and the key that hold them.
    """

    tensors: Mapping[tuple[str, str], StateTensor]
    values: Mapping[tuple[str, str], tuple[Mapping[str, Any], str]]


def flatten(state: Mapping[str, Any]) -> LooseState:
    """Flatten a nested state: the first key is the section, and the other keys, joined by dots, are the name.

    Raises:
        CheckpointError: two have the same name, or a value is neither tensor, number, string, boolean nor None.
    """
    tensors: dict[tuple[str, str], StateTensor] = {}
    values: dict[tuple[str, str], tuple[Mapping[str, Any], str]] = {}
    for section, name, value, parent, key in _leaves(state):
        if not _SECTION.fullmatch(section):
            raise CheckpointError(
                f"invalid section `{section}` of the state: files are named after it",
                hint="use letters, digits and _",
                code="checkpoint-state",
            )
        if (section, name) in tensors or (section, name) in values:
            raise CheckpointError(f"duplicate name `{section}.{name}` in the state", code="checkpoint-state")
        if isinstance(value, Tensor):
            tensors[section, name] = _state_tensor(section, name, value)
        elif isinstance(value, _PLAIN) or _is_plain_list(value):
            values[section, name] = (parent, key)
        else:
            raise CheckpointError(
                f"cannot save `{section}.{name}`: unsupported type {type(value).__name__}",
                hint="use tensors, numbers, strings and lists of these",
                code="checkpoint-state",
            )
    return LooseState(tensors=tensors, values=values)


def _leaves(state: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Mapping[str, Any], str]]:
    for section, part in state.items():
        if isinstance(part, Mapping):
            for name, value, parent, key in _within(part, ""):
                yield section, name, value, parent, key
        else:
            yield "state", section, part, state, section


def _within(part: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, Mapping[str, Any], str]]:
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from _within(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value, part, key


def _is_plain_list(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, _PLAIN) or _is_plain_list(item) for item in value)


def _state_tensor(section: str, name: str, tensor: Tensor) -> StateTensor:
    from torch.distributed.tensor import DTensor  # lazy: takes 0.5 s, and torch may lack distributed

    if dtype_name(tensor.dtype) is None:
        raise CheckpointError(
            f"cannot save `{section}.{name}`: unsupported dtype {tensor.dtype}", code="checkpoint-state"
        )
    if isinstance(tensor, DTensor):
        local, box = tensor.to_local().detach(), _box_of(tensor, f"{section}.{name}")
    else:
        local, box = tensor.detach(), Box.whole(tensor.shape)
    return StateTensor(section=section, name=name, dtype=tensor.dtype, shape=tuple(tensor.shape), box=box, local=local)


def _box_of(tensor: Any, name: str) -> Box:
    """Return the part of a DTensor that this process holds, as torch's checkpoints compute it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # lazy: as above

    if any(placement.is_partial() for placement in tensor.placements):
        raise CheckpointError(f"`{name}` has pending partial sums", code="checkpoint-state")
    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    held = tuple(tensor.to_local().shape)
    if 0 not in held and held != tuple(shape):
        raise CheckpointError(f"`{name}` has shape {held} here; its mesh says {tuple(shape)}", code="checkpoint-state")
    return Box(tuple(offsets), held)


def dtype_name(dtype: torch.dtype) -> str | None:
    """Return the safetensors name of a type, or None if it has none."""
    return _NAMES.get(dtype)


def item_bytes(name: str) -> int:
    """Return the size of an element in bytes."""
    return int(DTYPES[name].itemsize)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous host tensor, without a copy; valid as long as the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def set_value(place: tuple[Mapping[str, Any], str], value: Any) -> None:
    """Write a plain value back into the mapping that holds it."""
    parent, key = place
    if not isinstance(parent, MutableMapping):
        raise CheckpointError(f"cannot set `{key}`: its {type(parent).__name__} is immutable", code="checkpoint-state")
    parent[key] = value
