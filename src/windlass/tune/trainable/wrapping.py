"""Trainables with resources or big objects: `with_resources` and `with_parameters`."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.core.errors import NotFoundError
from windlass.tune.errors import BadValueError
from windlass.tune.trainable.shape import PlacementGroupFactory, Shape, read_shape

__all__ = ["Parameters", "PlacementGroupFactory", "WrappedTrainable", "unwrap", "with_parameters", "with_resources"]

Trainable = type | Callable[..., Any]
ShapeOf = Callable[[dict[str, Any]], Any]


class WrappedTrainable:
    """Trainable with its parameters and resources, which can be called like the trainable itself.

    Attributes:
        inner: the user's function or class.
        parameters: objects passed to it by name, or None.
        shape: resources of a trial, or a function from the configuration to them; None uses those of the class.
    """

    def __init__(
        self, inner: Trainable, *, parameters: Parameters | None = None, shape: Shape | ShapeOf | None = None
    ) -> None:
        self.inner = inner
        self.parameters = parameters
        self.shape = shape
        functools.update_wrapper(self, inner, updated=())

    @property
    def trainable(self) -> Trainable:
        """Object for a worker to run: the user's trainable, or a wrapper that adds the parameters."""
        if self.parameters is None:
            return self.inner
        if isinstance(self.inner, type):
            return _class_with(self.inner, self.parameters)
        return FunctionWith(self.inner, self.parameters)

    def __call__(self, config: dict[str, Any]) -> Any:
        return self.trainable(config)


class FunctionWith:
    """Function that gets parameters by name in addition to the configuration."""

    def __init__(self, function: Callable[..., Any], parameters: Parameters) -> None:
        self.function = function
        self.parameters = parameters
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, config: dict[str, Any]) -> Any:
        return self.function(config, **self.parameters.values())


def with_parameters(trainable: Any, **parameters: Any) -> WrappedTrainable:
    """Pass big objects as keyword arguments to a trainable function, or to the `setup` of a class.

    The objects are written to a file once, when the first worker is created; workers on a machine share its pages. They
    are not in the journal, so pass them to `Tuner.restore` again, with the trainable.

    Raises:
        UsageError: `trainable` is neither a function nor a class.
    """
    wrapped = _as_wrapped(trainable, "with_parameters")
    if not parameters:
        return wrapped
    held = wrapped.parameters.values() if wrapped.parameters is not None else {}
    return WrappedTrainable(wrapped.inner, parameters=Parameters({**held, **parameters}), shape=wrapped.shape)


def with_resources(trainable: Any, resources: Any) -> WrappedTrainable:
    """Set the resources for each trial: `{"cpu": 2, "gpu": 0.5}`, bundles, or a function of the configuration.

    Raises:
        UsageError: `trainable` is neither a function nor a class, or the form of `resources` is invalid.
    """
    wrapped = _as_wrapped(trainable, "with_resources")
    shape = resources if callable(resources) else read_shape(resources)
    return WrappedTrainable(wrapped.inner, parameters=wrapped.parameters, shape=shape)


def unwrap(trainable: Any) -> tuple[Trainable, Shape | ShapeOf | None]:
    """Return the object for a worker to run, and the resources that were set for trials."""
    if isinstance(trainable, WrappedTrainable):
        return trainable.trainable, trainable.shape
    return trainable, getattr(trainable, "_resources", None)


def _as_wrapped(trainable: Any, what: str) -> WrappedTrainable:
    if isinstance(trainable, WrappedTrainable):
        return trainable
    if not callable(trainable):
        hint = "pass a function of the configuration, or a subclass of tune.Trainable"
        raise BadValueError(
            f"{what} cannot wrap a {type(trainable).__name__}: {trainable!r}", hint=hint, code="invalid-value"
        )
    return WrappedTrainable(trainable)


def _class_with(inner: type, parameters: Parameters) -> type:
    def setup(self: Any, config: dict[str, Any]) -> None:
        inner.setup(self, config, **parameters.values())  # type: ignore[attr-defined]

    made = type(inner.__name__, (inner,), {"setup": setup, "__module__": inner.__module__, "__doc__": inner.__doc__})
    made.__qualname__ = f"with_parameters.<locals>.{inner.__qualname__}"  # so that it is not looked up by name
    return made


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
