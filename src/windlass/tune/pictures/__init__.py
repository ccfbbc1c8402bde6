"""Pictures of sweeps as PNG, SVG or HTML files; matplotlib is imported when one is drawn."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.pictures.gallery import KINDS, draw
else:
    __getattr__ = lazy_names(__name__, {"windlass.tune.pictures.gallery": ("KINDS", "draw")})

__all__ = ["KINDS", "draw"]
