"""Search algorithms, which choose the next configuration.

The modules have the same paths as in Ray Tune.

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
    from windlass.tune.search.concurrency_limiter import ConcurrencyLimiter
    from windlass.tune.search.registry import create_searcher
    from windlass.tune.search.repeater import Repeater
    from windlass.tune.search.searcher import Searcher
    from windlass.tune.space.primitives import grid_search
else:  # most sweeps need only one of them
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.search.basic_variant": ("BasicVariantGenerator",),
            "windlass.tune.search.concurrency_limiter": ("ConcurrencyLimiter",),
            "windlass.tune.search.registry": ("create_searcher",),
            "windlass.tune.search.repeater": ("Repeater",),
            "windlass.tune.search.searcher": ("Searcher",),
            "windlass.tune.space.primitives": ("grid_search",),
        },
    )

__all__ = [
    "BasicVariantGenerator",
    "ConcurrencyLimiter",
    "NoSuggestion",
    "Objectives",
    "Repeater",
    "SearchAlgorithm",
    "Searcher",
    "Suggestion",
    "Suggestions",
    "create_searcher",
    "grid_search",
]


class _MissingSearch(ModuleType):
    """Module for a Ray Tune searcher that windlass lacks; access raises an error that names alternatives."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        from windlass.tune.search.registry import missing_searcher  # lazy: only such a module needs it

        raise missing_searcher(self.__name__.rpartition(".")[2])


for _name in ("ax", "bayesopt", "hebo", "hyperopt", "nevergrad", "zoopt"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _MissingSearch(f"{__name__}.{_name}")
