"""Packages that windlass's extras install, and which extra to name if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

__all__ = ["EXTRAS", "missing_extra"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "beaker": ("beaker",),
    "data": ("fsspec", "gcsfs", "s3fs"),
    "keyring": ("keyring",),
    "ray": ("ray",),
    "train": ("numpy", "safetensors", "tokenizers", "torch"),
    "tune": ("cloudpickle", "cmaes", "matplotlib", "numpy", "optuna", "pandas", "rich", "scipy"),
}
"""Extra -> modules that it installs, without the dependencies of its packages."""


def missing_extra(error: ImportError) -> str:
    """Return the extra with the package that windlass failed to import; empty if user code imported it, or if no
    extra has it.
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
