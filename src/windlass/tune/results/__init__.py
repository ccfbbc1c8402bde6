"""Results of a sweep: analysis, and explanations of decisions, read from the journal."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.results.analysis import ExperimentAnalysis
    from windlass.tune.results.errors import BestTrialError, MetricError, TrialError, TrialMissingError
    from windlass.tune.results.grid import ResultGrid
    from windlass.tune.results.importance import importances
    from windlass.tune.results.lineages import lineage, policy_rows, write_policies
    from windlass.tune.results.result import Result
    from windlass.tune.results.scores import front_of
    from windlass.tune.results.why import explain, explain_wait
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.results.analysis": ("ExperimentAnalysis",),
            "windlass.tune.results.errors": ("BestTrialError", "MetricError", "TrialError", "TrialMissingError"),
            "windlass.tune.results.grid": ("ResultGrid",),
            "windlass.tune.results.importance": ("importances",),
            "windlass.tune.results.lineages": ("lineage", "policy_rows", "write_policies"),
            "windlass.tune.results.scores": ("front_of",),
            "windlass.tune.results.result": ("Result",),
            "windlass.tune.results.why": ("explain", "explain_wait"),
        },
    )

__all__ = [
    "BestTrialError",
    "ExperimentAnalysis",
    "MetricError",
    "Result",
    "ResultGrid",
    "TrialError",
    "TrialMissingError",
    "explain",
    "explain_wait",
    "front_of",
    "importances",
    "lineage",
    "policy_rows",
    "write_policies",
]
