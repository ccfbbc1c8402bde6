"""Big objects that all trials of a sweep share, in a file that workers map. They are never in the journal."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

from windlass.core.errors import NotFoundError
from windlass.tune.errors import BadValueError

__all__ = ["Parameters"]

_ALIGN = 64
_SIZE_BYTES = 8
_loaded: dict[str, dict[str, Any]] = {}  # by file, so that a process maps it only once


class Parameters:
    """Objects by name, which are pickled as a reference to a file on this machine or an entry in Ray's object store.

    Array memory is written unchanged and mapped by workers, which share its pages copy-on-write.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self._held: dict[str, Any] | None = held
        self._file = ""
        self._reference: Any = None

    def values(self) -> dict[str, Any]:
        """Return the objects, loaded once per process on first use."""
        if self._held is None:
            self._held = _fetch(self._reference) if self._reference is not None else _load(self._file)
        return dict(self._held)

    def __getstate__(self) -> dict[str, Any]:
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized() and not self._file:
            self._reference = self._reference or ray.put(self._held)
        elif not self._file and self._held is not None:
            folder = tempfile.mkdtemp(prefix="windlass-parameters-")
            weakref.finalize(self, _remove, folder, os.getpid())
            self._file = str(Path(folder) / "objects")
            _write(self._file, self._held)
        return {"_held": None, "_file": self._file, "_reference": self._reference}


def _write(path: str, held: dict[str, Any]) -> None:
    buffers: list[pickle.PickleBuffer] = []
    try:
        import cloudpickle  # lazy: only for objects that are not defined in a module

        dumps = cloudpickle.dumps
    except ImportError:
        dumps = pickle.dumps
    try:
        body = dumps(held, protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        message = f"the parameters {', '.join(held)} cannot be sent to workers: {error}"
        hint = "open files, locks and connections in the trainable"
        raise BadValueError(message, hint=hint, code="not-serialisable") from error
    raws = [buffer.raw() for buffer in buffers]
    sizes = [len(body), *(raw.nbytes for raw in raws)]
    with open(path, "wb") as file:
        file.write(b"".join(number.to_bytes(_SIZE_BYTES, "little") for number in (len(sizes), *sizes)))
        for piece in (body, *raws):
            file.write(bytes(-file.tell() % _ALIGN))
            file.write(piece)


def _load(path: str) -> dict[str, Any]:
    if path not in _loaded:
        try:
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            message = f"the objects of with_parameters are missing on this machine: {path}"
            hint = "call ray.init() first, so that workers on other machines get them through Ray"
            raise NotFoundError(message, hint=hint, code="invalid-call") from error
        body, *buffers = _pieces(memoryview(mapped))
        _loaded[path] = pickle.loads(body, buffers=buffers)  # noqa: S301 - written by the head of this sweep
    return _loaded[path]


def _pieces(view: memoryview) -> list[memoryview]:
    """Return the pickle followed by its out-of-band buffers."""
    numbers = (int.from_bytes(view[at : at + _SIZE_BYTES], "little") for at in range(0, len(view), _SIZE_BYTES))
    num_pieces = next(numbers)
    sizes = [next(numbers) for _ in range(num_pieces)]
    at = _SIZE_BYTES * (1 + num_pieces)
    pieces = []
    for size in sizes:
        at += -at % _ALIGN
        pieces.append(view[at : at + size])
        at += size
    return pieces


def _fetch(reference: Any) -> dict[str, Any]:
    import ray  # lazy: only for workers started by Ray

    found: dict[str, Any] = ray.get(reference)
    return found


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked worker must not delete the shared file
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
