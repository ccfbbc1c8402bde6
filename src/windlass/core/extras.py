"""Packages that come with an extra of windlass, and what to say where one is missing."""

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
    "tune": ("cloudpickle", "cmaes", "matplotlib", "numpy", "optuna", "pandas", "scipy"),
}
"""Extra to the modules that it brings; what a package of the extra needs itself is not listed."""


def missing_extra(error: ImportError) -> str:
    """The extra whose package windlass failed to import; empty where user code imported it, or it is no extra's."""
    module = (error.name or "").partition(".")[0]
    importer = _importer(error.__traceback__)
    if not importer.startswith("windlass."):
        return ""
    able = [extra for extra, modules in EXTRAS.items() if module in modules]
    return next((extra for extra in able if importer.startswith("windlass." + extra)), able[0] if able else "")


def _importer(traceback: TracebackType | None) -> str:
    """The module that asked for the import: the innermost one that is not of the import system."""
    names = [name for name in _modules(traceback) if not name.startswith(("importlib", "_frozen_importlib"))]
    return names[-1] if names else ""


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
