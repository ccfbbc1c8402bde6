"""Trainables with resources or big objects: `with_resources` and `with_parameters`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.trainable.parameters import Parameters
from windlass.tune.trainable.shape import PlacementGroupFactory, Shape, read_shape

__all__ = ["PlacementGroupFactory", "WrappedTrainable", "unwrap", "with_parameters", "with_resources"]

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
