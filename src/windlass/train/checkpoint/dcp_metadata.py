"""Parser for the pickled `.metadata` of torch's distributed checkpoints.

It imports and calls nothing that the pickle names.

This module executes the few opcodes that such a file uses. Classes become `PickledObject`s, only the four calls
that torch's metadata needs are allowed, and everything else is rejected. Source: pickletools; torch.distributed.checkpoint
.metadata and .filesystem, torch 2.13.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PickledObject", "UnsafeMetadataError", "parse_metadata"]

MAX_BYTES = 1 << 30
_METADATA = "torch.distributed.checkpoint.metadata"
_RECORDS = {
    (_METADATA, name)
    for name in (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"),
}
_DTYPES = frozenset(
    [
        "bool",
        "uint8",
        "int8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
)


class UnsafeMetadataError(ValueError):
    """Error for a file whose content is not metadata; nothing in it was executed."""


@dataclass(eq=False, slots=True)
class PickledObject:
    """Object of a named class, with its fields; the class itself is never imported."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return a field; None if it is missing."""
        return self.fields.get(name)


@dataclass(frozen=True, slots=True)
class _Global:
    module: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        return self.module, self.name


_CALLS: dict[tuple[str, str], Callable[[tuple[Any, ...]], Any]] = {
    ("torch", "Size"): lambda args: tuple(args[0]) if args else (),
    ("collections", "OrderedDict"): lambda args: {},
    ("torch.serialization", "_get_layout"): lambda args: None,
    (_METADATA, "_MEM_FORMAT_ENCODING"): lambda args: None,
    **{
        ("pathlib", name): (lambda args: "/".join(str(part) for part in args))
        for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")
    },
}


def parse_metadata(content: bytes) -> Any:
    """Parse a pickle that contains nothing but torch's metadata.

    Cost: a few microseconds per opcode; memory in proportion to the file.

    Raises:
        UnsafeMetadataError: it names anything but torch's metadata classes, uses an opcode that such a file never needs,
            is not a pickle, or is larger than 1 GiB.
    """
    if len(content) > MAX_BYTES:
        raise UnsafeMetadataError(f"it has {len(content)} bytes, more than {MAX_BYTES}")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return machine.end()
            machine.step(opcode.name, argument)
    except UnsafeMetadataError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UnsafeMetadataError(f"invalid pickle of metadata ({error!r})") from error
    raise UnsafeMetadataError("the pickle is truncated")


class _Machine:
    """Pickle machine with its stack, marks and memo."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def end(self) -> Any:
        """Return the object that was built."""
        (result,) = self._stack
        return result

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise UnsafeMetadataError(f"opcode {name} is not allowed in metadata")

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def since_mark(self) -> list[Any]:
        place = self._marks.pop()
        items = self._stack[place:]
        del self._stack[place:]
        return items

    def tuple_of(self, number: int) -> None:
        items = tuple(self._stack[-number:])
        if len(items) != number:
            raise UnsafeMetadataError("the stack is too short")
        self._stack[-number:] = [items]

    def tuple_since_mark(self, _: Any) -> None:
        self._stack.append(tuple(self.since_mark()))

    def put(self, place: int) -> None:
        self._memo[place] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, place: int) -> None:
        self._stack.append(self._memo[place])

    def append(self, _: Any) -> None:
        item = self._stack.pop()
        _as(list, self._stack[-1]).append(item)

    def appends(self, _: Any) -> None:
        items = self.since_mark()
        _as(list, self._stack[-1]).extend(items)

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        self._set(self.since_mark())

    def _set(self, items: list[Any]) -> None:
        target = _as(dict, self._stack[-1])
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | PickledObject):  # hashing nested tuples can take exponential time
                raise UnsafeMetadataError(f"a key is a {type(key).__name__}")
            target[key] = value

    def global_(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._push_global(module, name)

    def stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_global(_as(str, module), _as(str, name))

    def _push_global(self, module: str, name: str) -> None:
        found = _Global(module, name)
        if module == "torch" and name in _DTYPES:
            self._stack.append(name)
        elif found.key in _RECORDS or found.key in _CALLS:
            self._stack.append(found)
        else:
            raise UnsafeMetadataError(f"it names {module[:80]}.{name[:80]}")

    def new(self, _: Any) -> None:
        arguments, kind = self._stack.pop(), _as(_Global, self._stack.pop())
        if kind.key not in _RECORDS or arguments != ():
            raise UnsafeMetadataError(f"{kind.name} is constructed in an unexpected way")
        self._stack.append(PickledObject(kind.name))

    def reduce(self, _: Any) -> None:
        arguments, kind = _as(tuple, self._stack.pop()), _as(_Global, self._stack.pop())
        if kind.key not in _CALLS:
            raise UnsafeMetadataError(f"it calls {kind.module}.{kind.name}")
        self._stack.append(_CALLS[kind.key](arguments))

    def build(self, _: Any) -> None:
        state, record = self._stack.pop(), _as(PickledObject, self._stack[-1])
        if isinstance(state, tuple):
            state = dict(zip(("dtype", "layout", "requires_grad"), state, strict=False))
        for name, value in _as(dict, state).items():
            record.fields[_as(str, name)] = value


def _as(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:
        raise UnsafeMetadataError(f"found a {type(value).__name__} instead of a {kind.__name__}")
    return value


_PUSHED = frozenset(
    ["BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"]
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_since_mark,
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.appends,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_,
    "STACK_GLOBAL": _Machine.stack_global,
    "NEWOBJ": _Machine.new,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
