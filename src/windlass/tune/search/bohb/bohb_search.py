"""`TuneBOHB`: BOHB with Ray Tune's name and arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.search.optuna.bohb import BOHB
from windlass.tune.search.protocol import Objectives
from windlass.tune.space.grammar import describe, read_space

__all__ = ["TuneBOHB"]

_TAKEN = ("min_points_in_model", "top_n_percent", "num_samples", "random_fraction")


class TuneBOHB(BOHB):
    """BOHB search with Ray Tune's arguments, which needs neither HpBandSter nor ConfigSpace."""

    name = "TuneBOHB"

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        """Describe the search.

        Args:
            space: a windlass search space; by default `param_space`, which otherwise only holds constants.
            bohb_config: `min_points_in_model`, `top_n_percent`, `num_samples`, `random_fraction`.
            metric: metric that replaces TuneConfig's.
            mode: `min` or `max`.
            points_to_evaluate: configurations to try first.
            seed: seed that replaces the sweep's.
            max_concurrent: maximum number of live trials; 0 for no limit.

        Raises:
            UsageError: the space is from ConfigSpace, or an option is unknown.
        """
        if space is not None and not isinstance(space, Mapping):
            raise BadValueError(
                f"TuneBOHB takes a space of windlass, not {type(space).__name__}",
                hint="pass param_space with tune.uniform and similar functions",
                code="searcher-option",
            )
        options = dict(bohb_config or {})
        unknown = sorted(set(options) - set(_TAKEN))
        if unknown:
            raise BadValueError(
                f"TuneBOHB(bohb_config=...) has no option `{unknown[0]}`",
                hint=f"it has {', '.join(_TAKEN)}",
                code="searcher-option",
            )
        super().__init__(points_to_evaluate=points_to_evaluate, max_concurrent=max_concurrent, seed=seed, **options)
        self.own_space = space
        self.bohb_config = options
        self.metric = metric
        self.mode = mode

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        super().open(
            space={**space, **read_space(self.own_space or {})},
            objectives=objectives,
            seed=seed,
            num_samples=num_samples,
        )

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        settings: dict[str, object] = {name: value for name, value in super().settings().items() if name not in _TAKEN}
        if self.own_space is not None:
            settings["space"] = describe(self.own_space)
        return {**settings, "bohb_config": self.bohb_config, "metric": self.metric, "mode": self.mode}
