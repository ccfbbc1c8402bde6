"""Serialization of trainables for workers: as an import path if there is one, else as a pickle, even from notebooks."""

from __future__ import annotations

import base64
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

from windlass.core.extras import require
from windlass.tune.errors import BadValueError

__all__ = ["deserialize", "serialize"]

Code = type | Callable[..., Any]


def serialize(trainable: Code) -> dict[str, str]:
    """Return a trainable as JSON: `{"import": "package.module:name"}` or `{"pickle": base64}`.

    Raises:
        UsageError: an object that it refers to cannot be pickled.
        PreconditionError: it is not importable, and cloudpickle is not installed.
    """
    name = import_path(trainable)
    if name:
        return {"import": name}
    return {"pickle": base64.b64encode(_pickle(trainable)).decode("ascii")}


def import_path(trainable: Code) -> str:
    """Return the `module:name` by which a new process imports this very object, or an empty string if there is none."""
    module, name = getattr(trainable, "__module__", None), getattr(trainable, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return ""
    home = sys.modules.get(module)
    found: object = home
    for part in name.split("."):
        found = getattr(found, part, None)
    is_from_file = getattr(home, "__spec__", None) is not None
    return f"{module}:{name}" if found is trainable and is_from_file else ""


def _pickle(trainable: Code) -> bytes:
    try:
        plain = pickle.dumps(trainable, protocol=5)
        if b"__main__" not in plain:
            return plain
    except Exception:  # noqa: BLE001 - cloudpickle may succeed where pickle fails
        plain = b""
    name = getattr(trainable, "__qualname__", type(trainable).__qualname__)
    message = f"workers cannot import {name}, and cloudpickle is not installed"
    cloudpickle = require("cloudpickle", message, hint="pip install 'windlass[tune]', or move it into a module")
    try:
        return bytes(cloudpickle.dumps(trainable, protocol=5))
    except Exception as error:
        raise BadValueError(
            f"{name} cannot be sent to workers: {error}",
            hint="open files, locks and connections in the trainable, not outside of it",
            code="not-serialisable",
        ) from error


def deserialize(serialized: dict[str, str]) -> Code:
    """Load a trainable that `serialize` wrote.

    Use this only for data from this sweep's head.

    Raises:
        ImportError, AttributeError: its module is missing or differs.
    """
    if "import" in serialized:
        module, _, name = serialized["import"].partition(":")
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]
    return pickle.loads(base64.b64decode(serialized["pickle"]))  # type: ignore[no-any-return]  # noqa: S301 - see above
