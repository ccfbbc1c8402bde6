"""BOHB: a model of good configurations, learned at the largest budget that has enough results.

Use it with `HyperBandForBOHB`, which writes the budget of a result into `hyperband_info`; with any other scheduler, the
budget is the `training_iteration` at which the trial ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.tune.errors import BadValueError
from windlass.tune.rng import draw
from windlass.tune.search.optuna.searcher import OptunaSearcher
from windlass.tune.search.protocol import Objectives, Suggestion
from windlass.tune.space.tree import Pick
from windlass.tune.trial import Metrics

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from windlass.tune.search.optuna.model import Model

__all__ = ["BOHB"]


class BOHB(OptunaSearcher):
    """Search with a kernel density of the best configurations, and some random samples.

    Source: Falkner et al. 2018, arXiv 1807.01774, section 4 and algorithm 2; the densities are those of multivariate
    TPE, as the paper's are.
    """

    name = "BOHB"

    def __init__(
        self,
        *,
        min_points_in_model: int | None = None,
        top_n_percent: float = 15,
        num_samples: int = 64,
        random_fraction: float = 1 / 3,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        seed: int | None = None,
    ) -> None:
        """Describe the model.

        Args:
            min_points_in_model: number of results before a budget has a model; None for the number of parameters plus 1.
            top_n_percent: percentage of the results at a budget that count as good.
            num_samples: number of candidates, of which the most promising is suggested.
            random_fraction: share of suggestions that are drawn at random.
            points_to_evaluate: configurations to try first.
            max_concurrent: maximum number of live trials; 0 for no limit.
            seed: seed that replaces the sweep's.
        """
        super().__init__(points_to_evaluate=points_to_evaluate, max_concurrent=max_concurrent, seed=seed)
        self.min_points_in_model = min_points_in_model
        self.top_n_percent = top_n_percent
        self.num_samples_in_model = num_samples
        self.random_fraction = random_fraction

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        if len(objectives.metrics) > 1:
            raise BadValueError(
                f"BOHB optimizes one metric, not {len(objectives.metrics)}: {', '.join(objectives.metrics)}",
                hint="use TPE or NSGA2 for several",
                code="searcher-option",
            )
        self._models: dict[float, Model] = {}
        self._params: dict[int, dict[str, Any]] = {}
        self._told: dict[int, set[float]] = {}
        super().open(space=space, objectives=objectives, seed=seed, num_samples=num_samples)
        self._min_points = self.min_points_in_model or len(self._distributions) + 1

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the sampler, once a budget has enough results."""
        import optuna  # lazy: loaded by `open`

        has_conditions = any(isinstance(node, Pick) for node in self.space.parameters)
        made: BaseSampler = optuna.samplers.TPESampler(
            seed=seed,
            gamma=self._num_good,
            n_startup_trials=0,
            n_ei_candidates=self.num_samples_in_model,
            multivariate=True,
            group=has_conditions,
            constant_liar=False,
        )
        return made

    def ask(self, number: int) -> tuple[Suggestion, int]:
        """Sample a configuration from the model or at random; the base class keeps it as a pending point."""
        model = self._best_model()
        if model is None or draw(self.seed, "bohb", number).random() < self.random_fraction:
            config, assigned = self.space.draw(self.seed, number)
        else:
            trial = model.ask(self.sampler(number))
            config, assigned = self.configure(number, trial)
            model.forget_last(model.study_attrs())
        suggestion = Suggestion(config=config, assigned=assigned)
        return suggestion, self._add(suggestion)

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Record a suggestion; see `SearchAlgorithm.on_suggested`."""
        super().on_suggested(number, suggestion)
        self._params[number] = self._params_of(suggestion.config)

    def on_result(self, number: int, result: Metrics) -> None:
        """Learn from a result; see `SearchAlgorithm.on_result`.

        Results without a budget from the scheduler are ignored.
        """
        budget = _budget(result)
        if budget is not None:
            self._drop()
            self._learn(number, budget, result)

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Learn from the end of a trial; see `SearchAlgorithm.on_complete`."""
        super().on_complete(number, result)
        if result is not None:
            budget = _budget(result)
            if budget is not None or number not in self._told:
                self._learn(number, budget or result.get("training_iteration", 1), result)
        self._params.pop(number, None)
        self._told.pop(number, None)

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Learn from known points, each at its budget; see `SearchAlgorithm.add_known`."""
        super().add_known(configs, results)
        for index, (config, result) in enumerate(zip(configs, results, strict=True)):
            number = -1 - index
            self._params[number] = self._params_of(config)
            self._learn(number, _budget(result) or result.get("training_iteration", 1), result)
            del self._params[number], self._told[number]

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        return {
            **super().settings(),
            "min_points_in_model": self.min_points_in_model,
            "top_n_percent": self.top_n_percent,
            "num_samples": self.num_samples_in_model,
            "random_fraction": self.random_fraction,
        }

    def _learn(self, number: int, budget: float, result: Metrics) -> None:
        told = self._told.setdefault(number, set())
        values = self._values(result)
        if budget in told or any(map(math.isnan, values)) or not self._params.get(number):
            return
        told.add(budget)
        if budget not in self._models:
            self._models[budget] = self._lib.Model(["maximize" if self.objectives.is_max[0] else "minimize"])
        model = self._models[budget]
        model.tell(model.add(self._params[number], self._distributions), values)

    def _best_model(self) -> Model | None:
        enough = [budget for budget, model in self._models.items() if len(model) >= self._min_points + 2]
        return self._models[max(enough)] if enough else None

    def _num_good(self, num_points: int) -> int:
        return min(max(self._min_points, math.ceil(num_points * self.top_n_percent / 100)), num_points - 1)


def _budget(result: Metrics) -> float | None:
    """Return the budget that the scheduler wrote to a result, nested or flat, or None if there is none."""
    nested = result.get("hyperband_info") or {}
    budget: float | None = nested.get("budget", result.get("hyperband_info/budget"))
    return budget
