"""Search algorithms, which choose the next configuration. Modules have the same paths as in Ray Tune.

    algorithm = BasicVariantGenerator()
    algorithm.open(space=param_space, objectives=Objectives(), seed=0, num_samples=20)
    algorithm.suggest(0)

`SearchAlgorithm` is the protocol; a plug-in subclasses `Searcher`, which has the methods of Ray Tune's.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.tune.search.protocol import NoSuggestion, Objectives, SearchAlgorithm, Suggestion, Suggestions

if TYPE_CHECKING:
    from windlass.tune.search.basic_variant import BasicVariantGenerator
    from windlass.tune.search.bohb.bohb_search import TuneBOHB
    from windlass.tune.search.concurrency_limiter import ConcurrencyLimiter
    from windlass.tune.search.optuna.bohb import BOHB
    from windlass.tune.search.optuna.optuna_search import OptunaSearch
    from windlass.tune.search.optuna.samplers import CMAES, GP, NSGA2, NSGA3, TPE
    from windlass.tune.search.quasi_random import QuasiRandom
    from windlass.tune.search.registry import (
        as_searcher,
        create_searcher,
        own_objectives,
        searcher_from,
        searcher_settings,
    )
    from windlass.tune.search.repeater import Repeater
    from windlass.tune.search.searcher import Searcher
    from windlass.tune.space import grid_search
else:  # most sweeps need only one of them
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.search.basic_variant": ("BasicVariantGenerator",),
            "windlass.tune.search.bohb.bohb_search": ("TuneBOHB",),
            "windlass.tune.search.concurrency_limiter": ("ConcurrencyLimiter",),
            "windlass.tune.search.optuna.bohb": ("BOHB",),
            "windlass.tune.search.optuna.optuna_search": ("OptunaSearch",),
            "windlass.tune.search.optuna.samplers": (
                "CMAES",
                "GP",
                "NSGA2",
                "NSGA3",
                "TPE",
            ),
            "windlass.tune.search.quasi_random": ("QuasiRandom",),
            "windlass.tune.search.registry": (
                "as_searcher",
                "create_searcher",
                "own_objectives",
                "searcher_from",
                "searcher_settings",
            ),
            "windlass.tune.search.repeater": ("Repeater",),
            "windlass.tune.search.searcher": ("Searcher",),
            "windlass.tune.space": ("grid_search",),
        },
    )

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
    "Searcher",
    "Suggestion",
    "Suggestions",
    "TuneBOHB",
    "as_searcher",
    "create_searcher",
    "grid_search",
    "own_objectives",
    "searcher_from",
    "searcher_settings",
]


class _MissingSearch(ModuleType):
    """Module of a Ray Tune searcher that windlass lacks; access raises an error that names alternatives."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        from windlass.tune.search.registry import missing_searcher  # lazy: only such a module needs it

        raise missing_searcher(self.__name__.rpartition(".")[2])


for _name in ("ax", "bayesopt", "hebo", "hyperopt", "nevergrad", "zoopt"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _MissingSearch(f"{__name__}.{_name}")
