"""Stoppers from what a user wrote as `stop=`, and from the journal of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windlass.core.errors import PreconditionError, UsageError
from windlass.tune.space import SpaceError, import_name, imported
from windlass.tune.stoppers import limits, plateaus
from windlass.tune.stoppers.protocol import Stopper

__all__ = ["as_stopper", "stopper_from", "stopper_settings"]

_OURS: dict[str, Callable[..., Stopper]] = {
    name: getattr(module, name) for module in (limits, plateaus) for name in module.__all__
}


def as_stopper(stop: Any) -> Stopper | None:
    """One stopper of whatever `stop=` was given; None where that stops nothing.

    Args:
        stop: `{metric: bound}`, a function of trial id and result, a stopper (windlass's, Ray Tune's or your own), a
            list of these, or None.

    Raises:
        UsageError: it is none of them.
    """
    if stop is None or (isinstance(stop, (Mapping, list, tuple)) and not stop):
        return None
    if isinstance(stop, Mapping):
        return limits.MetricStopper(stop)
    if isinstance(stop, (list, tuple)):
        return limits.CombinedStopper(*(made for one in stop if (made := as_stopper(one)) is not None))
    if isinstance(stop, type):
        raise UsageError(
            f"stop is the class {stop.__name__}", hint=f"make one: {stop.__name__}(...)", code="stop-not-understood"
        )
    if callable(stop):
        found: Stopper = stop if hasattr(stop, "stop_all") else limits.FunctionStopper(stop)
        return found
    raise UsageError(
        f"stop is {stop!r}", hint='stop={"training_iteration": 10}, a function or a stopper', code="stop-not-understood"
    )


def stopper_settings(stopper: Stopper) -> dict[str, Any]:
    """The JSON form: `{"type": ..., **arguments}`; for others than ours the import path, and its own settings."""
    found: Mapping[str, Any] | None = getattr(stopper, "settings", dict)()
    if found and "type" in found:
        return dict(found)
    kind = type(stopper)
    return {"type": import_name(kind) or kind.__qualname__, **(found or {})}


def stopper_from(settings: Mapping[str, Any]) -> Stopper:
    """Read back `stopper_settings`; a fresh stopper, which has seen nothing.

    Raises:
        PreconditionError: it needs code, or an object, that can not be found by its name.
    """
    arguments = {name: value for name, value in settings.items() if name != "type"}
    kind = settings["type"]
    if kind == "CombinedStopper":
        return limits.CombinedStopper(*map(stopper_from, arguments["stoppers"]))
    try:
        if kind == "FunctionStopper":
            return limits.FunctionStopper(imported(arguments["function"]))
        made = _OURS.get(kind) or imported(kind)
        stopper: Stopper = made(**arguments)
    except (SpaceError, TypeError) as error:
        raise PreconditionError(
            f"the stopper of this sweep, {arguments.get('function', kind)}, can not be made again: {error}",
            hint="give it again with stop=",
            code="stopper-needs-code",
        ) from error
    return stopper
