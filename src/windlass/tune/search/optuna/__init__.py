"""Searchers that use Optuna's samplers.

Optuna is imported when a sweep starts.
"""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.search.optuna.optuna_search import OptunaSearch
else:
    __getattr__ = lazy_names(__name__, {"windlass.tune.search.optuna.optuna_search": ("OptunaSearch",)})

__all__ = ["OptunaSearch"]
