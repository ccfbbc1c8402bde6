"""Libraries that searchers stand on, imported when they are needed, with an error that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from windlass.core.errors import PreconditionError

__all__ = ["library"]


def library(name: str, who: str, *, hint: str = "pip install 'windlass[tune]'") -> ModuleType:
    """The module with this name.

    Raises:
        PreconditionError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise PreconditionError(
            f"{who} needs the library {name.partition('.')[0]}, which is not installed",
            hint=hint,
            code="searcher-missing",
        ) from error
