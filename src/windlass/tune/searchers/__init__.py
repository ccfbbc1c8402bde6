"""Searchers say which configuration to try next.

    searcher = BasicVariantGenerator()
    searcher.open(space=param_space, objectives=Objectives(), seed=0, num_samples=20)
    searcher.suggest(0)

Names are looked up when they are first used: most sweeps need one of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from windlass.tune.searchers.protocol import NoSuggestion, Objectives, SearchAlgorithm, Suggestion, Suggestions

if TYPE_CHECKING:
    from windlass.tune.searchers.basic_variant import BasicVariantGenerator
    from windlass.tune.searchers.concurrency_limiter import ConcurrencyLimiter
    from windlass.tune.searchers.optuna.bohb import BOHB
    from windlass.tune.searchers.optuna.optuna_search import OptunaSearch
    from windlass.tune.searchers.optuna.samplers import CMAES, GP, NSGA2, NSGA3, TPE
    from windlass.tune.searchers.optuna.tune_bohb import TuneBOHB
    from windlass.tune.searchers.quasi_random import QuasiRandom
    from windlass.tune.searchers.registry import (
        as_searcher,
        create_searcher,
        own_objectives,
        searcher_from,
        searcher_settings,
    )
    from windlass.tune.searchers.repeater import Repeater

__all__ = [
    "BOHB",
    "CMAES",
    "GP",
    "NSGA2",
    "NSGA3",
    "TPE",
    "BasicVariantGenerator",
    "ConcurrencyLimiter",
    "NoSuggestion",
    "Objectives",
    "OptunaSearch",
    "QuasiRandom",
    "Repeater",
    "SearchAlgorithm",
    "Suggestion",
    "Suggestions",
    "TuneBOHB",
    "as_searcher",
    "create_searcher",
    "own_objectives",
    "searcher_from",
    "searcher_settings",
]

_FUNCTIONS = frozenset({"as_searcher", "create_searcher", "own_objectives", "searcher_from", "searcher_settings"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    registry = importlib.import_module(f"{__name__}.registry")
    value = getattr(registry, name) if name in _FUNCTIONS else registry.class_named(name)
    globals()[name] = value
    return value
