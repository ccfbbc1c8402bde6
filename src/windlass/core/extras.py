"""Optional packages: import on first use, and the extra of windlass to name if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from windlass.core.errors import PreconditionError

__all__ = ["EXTRAS", "ensure_installed", "is_installed", "missing_extra", "require"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "aws": ("boto3",),
    "beaker": ("beaker",),
    "data": ("fsspec", "gcsfs", "s3fs"),
    "keyring": ("keyring",),
    "post": ("jinja2", "math_verify"),
    "ray": ("ray",),
    "train": ("numpy", "safetensors", "tokenizers", "torch"),
    "tune": ("cloudpickle", "cmaes", "matplotlib", "numpy", "optuna", "pandas", "rich", "scipy"),
}
"""Extra -> modules that it installs, without the dependencies of its packages."""


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be imported; does not import it."""
    return find_spec(module) is not None


def ensure_installed(module: str, message: str, *, hint: str) -> None:
    """Raise if a module is missing, without importing it, for processes that do not use it.

    Raises:
        PreconditionError: it is not installed (`extra-missing`).
    """
    if not is_installed(module):
        raise PreconditionError(message, hint=hint, code="extra-missing")


def require(module: str, message: str, *, hint: str) -> Any:
    """Import a module of an optional package.

    Raises:
        PreconditionError: it is not installed (`extra-missing`).
        ImportError: it is installed, but fails to import, for example because it lacks a package of its own.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise PreconditionError(message, hint=hint, code="extra-missing") from error


def missing_extra(error: ImportError) -> str:
    """Return the extra with the package that windlass failed to import.

    The result is empty if user code imported it, or if no extra has it.
    """
    module = (error.name or "").partition(".")[0]
    importer = _importer(error.__traceback__)
    if not importer.startswith("windlass."):
        return ""
    able = [extra for extra, modules in EXTRAS.items() if module in modules]
    return next((extra for extra in able if importer.startswith("windlass." + extra)), able[0] if able else "")


def _importer(traceback: TracebackType | None) -> str:
    """Return the module that requested the import, which is the innermost one outside the import system."""
    names = [name for name in _modules(traceback) if not name.startswith(("importlib", "_frozen_importlib"))]
    return names[-1] if names else ""


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
