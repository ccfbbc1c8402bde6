"""What a sweep of an experiment file tunes: the experiment itself, or a class or function that slots import."""

from __future__ import annotations

import importlib
from typing import Any

from windlass.core.errors import InternalError, NotFoundError, UsageError
from windlass.core.names import nearest

__all__ = ["experiment", "find_trainable"]


def experiment(config: dict[str, Any]) -> None:
    """Stands for an experiment in the journal of a sweep whose trials are runs; is never called."""
    raise InternalError(f"a run of an experiment was called as a function, with {config}")


def find_trainable(name: str) -> Any:
    """The class or function of `MODULE:NAME`.

    Raises:
        NotFoundError: there is no such module or name (`trainable-not-found`).
        UsageError: it is neither a class nor a function.
    """
    module_name, _, path = name.partition(":")
    hint = "its folder must be the experiment's `code`, or it must be installed in its environment"
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise NotFoundError(f"no module `{module_name}`: {error}", hint=hint, code="trainable-not-found") from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = nearest(part, vars(found))
            hint = f"did you mean `{module_name}:{close}`?" if close else "write `MODULE:NAME`"
            raise NotFoundError(f"`{module_name}` has no `{part}`", hint=hint, code="trainable-not-found")
        found = getattr(found, part)
    if not callable(found):
        hint = "name a function of the configuration, or a subclass of tune.Trainable"
        raise UsageError(f"`{name}` is neither a class nor a function", hint=hint, code="not-a-trainable")
    return found
