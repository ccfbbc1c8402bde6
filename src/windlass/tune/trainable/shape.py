"""Resources for a trial as users write them: a dictionary, bundles, or a function of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.errors import BadTypeError, BadValueError
from windlass.tune.trial import ONE_CPU, Resources

__all__ = ["PlacementGroupFactory", "Shape", "read_shape", "resource_name", "resources_of"]

_NAMES = {"cpu": "CPU", "gpu": "GPU"}
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class PlacementGroupFactory:
    """Resource bundles for a trial that starts its own workers; the first one is for the trial's main process."""

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK", **options: object) -> None:
        if options:
            message = f"PlacementGroupFactory does not take {', '.join(options)}"
            raise BadTypeError(message, hint="it accepts only bundles and a strategy", code="unknown-option")
        if strategy not in _STRATEGIES:
            message = f"strategy={strategy!r} is not one of {', '.join(_STRATEGIES)}"
            raise BadValueError(message, hint="use for example PACK", code="invalid-value")
        if not bundles:
            raise BadValueError(
                "PlacementGroupFactory([]) has no bundle", hint="pass for example [{'CPU': 1}]", code="invalid-value"
            )
        self.bundles = [_read_bundle(bundle) for bundle in bundles]
        self.strategy = strategy

    @property
    def head_bundle_is_empty(self) -> bool:
        """True if the trial's main process needs no resources."""
        return not self.bundles[0]

    @property
    def head_cpus(self) -> float:
        """Number of CPUs in the first bundle."""
        return self.to_resources().head_cpus

    @property
    def required_resources(self) -> dict[str, float]:
        """Sum of all bundles."""
        return self.to_resources().total

    def to_resources(self) -> Resources:
        """Return the resources in the form that the controller uses."""
        return Resources(bundles=tuple(self.bundles), strategy=self.strategy)

    def __eq__(self, other: object) -> bool:
        theirs = other.to_resources() if isinstance(other, PlacementGroupFactory) else other
        return isinstance(theirs, Resources) and self.to_resources() == theirs

    def __hash__(self) -> int:
        return hash(self.to_resources())

    def __repr__(self) -> str:
        return f"PlacementGroupFactory({self.bundles!r}, strategy={self.strategy!r})"


Shape = Mapping[str, Any] | PlacementGroupFactory | Resources
"""Dictionary such as `{"cpu": 2, "gpu": 0.5}`, or bundles."""


def read_shape(shape: Any) -> Resources:
    """Return the resources that a user wrote, in the form that the controller uses; None stands for one CPU.

    Raises:
        UsageError: the form is invalid, or an amount is negative or not a number.
    """
    if shape is None:
        return ONE_CPU
    if isinstance(shape, Resources):
        return shape
    if isinstance(shape, Mapping):
        return Resources(bundles=(_read_bundle(_flat(shape)),))
    if isinstance(shape, PlacementGroupFactory):
        return shape.to_resources()
    if hasattr(shape, "bundles") and hasattr(shape, "strategy"):  # Ray's own class
        return PlacementGroupFactory(shape.bundles, shape.strategy).to_resources()
    hint = "use {'cpu': 2, 'gpu': 1} or PlacementGroupFactory([{'CPU': 1}, {'GPU': 1}])"
    raise BadValueError(f"resources cannot be a {type(shape).__name__}: {shape!r}", hint=hint, code="invalid-value")


def resources_of(
    trainable: Any, shape: Shape | Callable[[dict[str, Any]], Any] | None, config: dict[str, Any]
) -> Resources:
    """Return the resources for a trial: from the sweep, else from the class, else one CPU.

    Raises:
        UsageError: the user's function failed (`user-code-failed`), or the form of its result is invalid.
    """
    ask = shape if shape is not None else getattr(trainable, "default_resource_request", None)
    return read_shape(_answer(ask, config) if callable(ask) else ask)


def _answer(ask: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Any:
    """Call the user's resources function."""
    try:
        return ask(config)
    except UsageError:
        raise
    except Exception as error:
        code = getattr(ask, "__code__", None)
        place = f" ({code.co_filename.rpartition('/')[2]}:{code.co_firstlineno})" if code else ""
        name = f"{getattr(ask, '__qualname__', repr(ask))}{place}"
        raise BadValueError(
            f"the resources function {name} failed with {type(error).__name__}: {error}",
            hint=f"the configuration has {', '.join(map(repr, config)) or 'no names'}",
            code="user-code-failed",
        ) from error


def _flat(shape: Mapping[str, Any]) -> dict[str, Any]:
    custom = shape.get("custom_resources") or {}
    return {**{name: amount for name, amount in shape.items() if name != "custom_resources"}, **custom}


def _read_bundle(bundle: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, amount in bundle.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < float("inf"):
            raise BadValueError(
                f"invalid amount {name}={amount!r}", hint=f"use for example {{'{name}': 1}}", code="invalid-value"
            )
        if amount:
            found[resource_name(name)] = float(amount)
    return found


def resource_name(name: str) -> str:
    """Return the controller's name for a resource: `cpu` and `gpu` become CPU and GPU."""
    return _NAMES.get(name.lower(), name)
