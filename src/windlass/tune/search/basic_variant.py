"""Random search and grids: each sample is one trial per point of the grid, with all other values random.

A trial number always has the same configuration, at any concurrency and after any restart, because every draw has its
own key (`windlass.tune.rng`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from windlass.tune.search.defaults import SearcherDefaults
from windlass.tune.search.protocol import NoSuggestion, Objectives, Suggestion, Suggestions
from windlass.tune.space.values import flat

__all__ = ["BasicVariantGenerator"]


class BasicVariantGenerator(SearcherDefaults):
    """Search over the grid times random samples, in the order of Ray Tune. This is the default."""

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: int | None = None,
    ) -> None:
        """Describe the search.

        Args:
            points_to_evaluate: points that replace the first samples; missing values are drawn, and missing grids are
                enumerated.
            max_concurrent: maximum number of live trials; 0 for no limit.
            constant_grid_search: draw once per sample, and use the values for all points of the grid.
            random_state: seed that replaces the sweep's.
        """
        super().__init__(points=points_to_evaluate or (), max_concurrent=max_concurrent)
        self.constant_grid_search = constant_grid_search
        self.random_state = random_state

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        seed = seed if self.random_state is None else self.random_state
        super().open(space=space, objectives=objectives, seed=seed, num_samples=num_samples)
        self._ends = list(accumulate(preset.grid_size for preset in self._presets))

    def num_trials(self) -> float:
        """Return the number of trials: those for presets, and a whole grid for every other sample."""
        num_left = self.num_samples - len(self._presets)
        num_preset = self._ends[-1] if self._ends else 0
        return float("inf") if self.num_samples < 0 else num_preset + max(num_left, 0) * self.space.grid_size

    def suggest(self, number: int) -> Suggestions:
        """Return the next configuration; see `SearchAlgorithm.suggest`."""
        if not 0 <= number < self.num_trials():
            return NoSuggestion.FINISHED
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return NoSuggestion.NOT_YET
        sample = bisect_right(self._ends, number)
        if sample < len(self._presets):
            space, grid_index = self._presets[sample], number - (self._ends[sample - 1] if sample else 0)
        else:
            space = self.space
            sample, grid_index = divmod(number - (self._ends[-1] if self._ends else 0), space.grid_size)
            sample += len(self._presets)
        purpose = ("sample", sample) if self.constant_grid_search else ("trial", number)
        config, assigned = space.draw(self.seed, *purpose, grid_index=grid_index)
        if sample < len(self.points):
            assigned = {**flat(self.points[sample]), **assigned}
        return Suggestion(config=config, assigned=assigned)

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        settings = dict(super().settings())
        if self.constant_grid_search:
            settings["constant_grid_search"] = True
        if self.random_state is not None:
            settings["random_state"] = self.random_state
        return settings
