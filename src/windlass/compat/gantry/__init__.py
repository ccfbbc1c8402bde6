"""`gantry run` unchanged: its command line and its Python API (`Recipe`), for Beaker and any other site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.compat.gantry.checkout import Checkout
    from windlass.compat.gantry.following import FollowOptions
    from windlass.compat.gantry.invocation import Invocation, read_command_line
    from windlass.compat.gantry.recipe import Recipe
    from windlass.compat.gantry.request import GantryRequest, Launched, launch, prepare
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.compat.gantry.checkout": ("Checkout",),
            "windlass.compat.gantry.following": ("FollowOptions",),
            "windlass.compat.gantry.invocation": ("Invocation", "read_command_line"),
            "windlass.compat.gantry.request": ("Launched", "GantryRequest", "launch", "prepare"),
            "windlass.compat.gantry.recipe": ("Recipe",),
        },
    )

__all__ = [
    "Checkout",
    "FollowOptions",
    "GantryRequest",
    "Invocation",
    "Launched",
    "Recipe",
    "launch",
    "prepare",
    "read_command_line",
]
