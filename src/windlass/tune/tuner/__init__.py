"""Tuner: reads and checks arguments from Python, and runs or restores a sweep with a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.tuner.tuner import Tuner
else:
    __getattr__ = lazy_names(__name__, {"windlass.tune.tuner.tuner": ("Tuner",)})

__all__ = ["Tuner"]
