"""Results of a sweep, read from its journal: analysis, and explanations of decisions."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.results.errors import BestTrialError, MetricError, TrialError, TrialMissingError
    from windlass.tune.results.importance import importances
    from windlass.tune.results.lineages import lineage
    from windlass.tune.results.why import explain
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.results.errors": (
                "BestTrialError",
                "MetricError",
                "TrialError",
                "TrialMissingError",
            ),
            "windlass.tune.results.importance": ("importances",),
            "windlass.tune.results.lineages": ("lineage",),
            "windlass.tune.results.why": ("explain",),
        },
    )

__all__ = ["BestTrialError", "MetricError", "TrialError", "TrialMissingError", "explain", "importances", "lineage"]
