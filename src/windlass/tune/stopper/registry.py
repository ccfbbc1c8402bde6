"""Creation of stoppers from a value of `stop=`, or from a sweep's journal."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.tune.errors import BadValueError, SpaceError
from windlass.tune.space.values import imported
from windlass.tune.stopper import limits, plateaus
from windlass.tune.stopper.protocol import Stopper

__all__ = ["as_stopper", "stopper_from", "without_timeouts"]

_OURS: dict[str, Callable[..., Stopper]] = {
    name: getattr(module, name) for module in (limits, plateaus) for name in module.__all__
}


def as_stopper(stop: Any) -> Stopper | None:
    """Return the stopper for a value of `stop=`, or None if it stops nothing.

    Args:
        stop: `{metric: bound}`, a function of trial id and result, a stopper (windlass's, Ray Tune's or your own), a
            list of these, or None.

    Raises:
        UsageError: it is none of these.
    """
    if stop is None or (isinstance(stop, (Mapping, list, tuple)) and not stop):
        return None
    if isinstance(stop, Mapping):
        return limits.MetricStopper(stop)
    if isinstance(stop, (list, tuple)):
        return limits.CombinedStopper(*(made for one in stop if (made := as_stopper(one)) is not None))
    if isinstance(stop, type):
        raise BadValueError(
            f"stop is the class {stop.__name__}",
            hint=f"pass an object: {stop.__name__}(...)",
            code="invalid-value",
        )
    if callable(stop):
        _check_call(stop)
        found: Stopper = stop if hasattr(stop, "stop_all") else limits.FunctionStopper(stop)
        return found
    raise BadValueError(
        f"invalid stop condition {stop!r}",
        hint='pass stop={"training_iteration": 10}, a function or a stopper',
        code="invalid-value",
    )


def _check_call(stop: Callable[..., Any]) -> None:
    """Check that a function can be called with a trial's id and a result."""
    try:
        inspect.signature(stop).bind("00000", {})
    except ValueError:  # written in C: unknown
        return
    except TypeError as error:
        name = getattr(stop, "__qualname__", type(stop).__name__)
        hint = "it is called with the trial's id and the result: lambda trial_id, result: result['loss'] < 0.1"
        raise BadValueError(f"stop is {name}: {error}", hint=hint, code="invalid-value") from error


def without_timeouts(stopper: Stopper | None) -> tuple[Stopper | None, float]:
    """Separate the time budgets from a stopper; the controller enforces them over all heads.

    Returns:
        The other stoppers, or None; and the smallest budget in seconds, or 0.
    """
    if type(stopper) is limits.TimeoutStopper:
        return None, 0.0 if math.isinf(stopper.timeout_s) else stopper.timeout_s
    if type(stopper) is not limits.CombinedStopper:
        return stopper, 0.0
    parts = [without_timeouts(one) for one in stopper.stoppers]
    budgets = [seconds for _, seconds in parts if seconds]
    if not budgets:
        return stopper, 0.0
    left = [one for one, _ in parts if one is not None]
    return limits.CombinedStopper(*left) if left else None, min(budgets)


def stopper_from(settings: Mapping[str, Any]) -> Stopper:
    """Decode the output of `stopper_settings` to a stopper that has not seen any results.

    Raises:
        PreconditionError: its code, or an object that it uses, cannot be imported.
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
            f"cannot recreate the stopper of this sweep, {arguments.get('function', kind)}: {error}",
            hint="pass it again with stop=",
            code="module-not-found",
        ) from error
    return stopper
