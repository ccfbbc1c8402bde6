"""`TuneBOHB`, under Ray Tune's import path."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.search.bohb.bohb_search import TuneBOHB
else:
    __getattr__ = lazy_names(__name__, {"windlass.tune.search.bohb.bohb_search": ("TuneBOHB",)})

__all__ = ["TuneBOHB"]
