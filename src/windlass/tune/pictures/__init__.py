"""Pictures of sweeps as PNG, SVG or HTML files; matplotlib is imported only when one is drawn."""

from __future__ import annotations

from windlass.tune.pictures.drawing import draw

__all__ = ["draw"]
