"""Schedulers, searchers and executors, given by name or as objects."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

from windlass.core.names import nearest
from windlass.tune.errors import BadValueError
from windlass.tune.executors.protocol import Executor
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import SearchAlgorithm

__all__ = ["EXECUTORS", "make_executor", "make_scheduler", "make_searcher"]

EXECUTORS = ("local", "in-process", "ray")


def make_scheduler(choice: Any) -> SweepScheduler:
    """Return a scheduler, by default FIFO.

    An object is copied, so that several sweeps can use it.

    Raises:
        UsageError: unknown name, or the object is not a scheduler.
    """
    if choice is None:
        from windlass.tune.schedulers.fifo import FIFO  # lazy: a sweep loads only what it needs

        return FIFO()
    if isinstance(choice, str):
        from windlass.tune.schedulers.registry import create_scheduler  # lazy: as above

        return create_scheduler(choice)
    methods = ("on_result", "choose", "settings")
    found: SweepScheduler = copy.deepcopy(_checked(choice, "scheduler", methods, "windlass.tune.schedulers"))
    return found


def make_searcher(choice: Any) -> SearchAlgorithm:
    """Return a searcher, by default random and grid search.

    An object is copied, so that several sweeps can use it.

    Raises:
        UsageError: unknown name, or the object is not a searcher.
    """
    if choice is None:
        from windlass.tune.search.basic_variant import BasicVariantGenerator  # lazy: as above

        return BasicVariantGenerator()
    from windlass.tune.search.registry import as_searcher  # lazy: as above

    return copy.deepcopy(as_searcher(choice))


def make_executor(choice: Any) -> Executor:
    """Return an executor.

    The default is `ray` if connected to Ray or if RAY_ADDRESS is set, else `local`.

    Raises:
        UsageError: unknown name, or the object is not an executor.
    """
    if choice is None:
        ray = sys.modules.get("ray")
        is_connected = ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized()
        choice = "ray" if is_connected or os.environ.get("RAY_ADDRESS") else "local"
    if not isinstance(choice, str):
        found: Executor = _checked(choice, "executor", ("open", "room", "start", "poll"), "windlass.tune.executors")
        return found
    if choice == "local":
        from windlass.tune.executors.local import Local  # lazy: a sweep loads only what it needs

        return Local()
    if choice in ("in-process", "in_process"):
        from windlass.tune.executors.in_process import InProcess  # lazy: as above

        return InProcess()
    if choice == "ray":
        from windlass.tune.executors.ray import RayExecutor  # lazy: as above

        return RayExecutor()
    near = nearest(choice, EXECUTORS)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(EXECUTORS)}"
    raise BadValueError(f"unknown executor {choice!r}", hint=hint, code="unknown-name")


def _checked(choice: Any, what: str, methods: tuple[str, ...], home: str) -> Any:
    if not isinstance(choice, type) and all(hasattr(choice, method) for method in methods):
        return choice
    module = type(choice).__module__
    hint = f"it needs the methods {', '.join(methods)}; see {home}"
    if module.startswith("ray."):
        hint = f"import it from {'windlass' + module.removeprefix('ray')} instead of {module}"
    if isinstance(choice, type):
        hint = f"make one: {choice.__name__}()"
    raise BadValueError(f"invalid {what}: {choice!r:.100}", hint=hint, code="invalid-value")
