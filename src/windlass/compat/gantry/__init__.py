"""`gantry run`, accepted unchanged: its command line and its Python API (`Recipe`), for Beaker and any other site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.compat.gantry.recipe import Recipe
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.compat.gantry.recipe": ("Recipe",),
        },
    )

__all__ = ["Recipe"]
