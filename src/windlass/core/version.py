"""Version of windlass, for every layer."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
