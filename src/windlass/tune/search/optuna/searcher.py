"""Searchers that use an Optuna sampler as their model, with ask and tell.

A suggestion depends only on the sweep's seed, the trial's number and earlier results. Suggestions requested ahead are kept
as pending points, and are dropped when a result arrives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, overload

from windlass.tune.errors import BadValueError
from windlass.tune.rng import draw_int
from windlass.tune.search.defaults import SearcherDefaults, library
from windlass.tune.search.optuna.distributions import check_searchable, distribution_of, to_param, to_value
from windlass.tune.search.protocol import NoSuggestion, Objectives, Suggestion, Suggestions
from windlass.tune.search.standalone import StandaloneSearcher
from windlass.tune.space.tree import DomainNode, Pick
from windlass.tune.space.values import flat, is_same
from windlass.tune.trial import Metrics

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

__all__ = ["OptunaSearcher"]


@dataclass(frozen=True, slots=True)
class _AskedAhead:
    """Suggestion made in advance that has not been used yet."""

    number: int
    suggestion: Suggestion
    index: int
    study_attrs: dict[str, Any]


class OptunaSearcher(StandaloneSearcher, SearcherDefaults):
    """Searcher that gets configurations from a sampler and tells it their results.

    Subclasses choose the sampler.

    Attributes:
        fixed: parameters that are not searched, by name, and their values; the model still learns from all.
        options: arguments of the sampler.
    """

    learns = True
    study_name: str | None = None
    name: ClassVar[str] = "OptunaSearcher"
    is_recalled: ClassVar[bool] = False
    """True if the sampler's state can only be restored by repeating `ask`; for cheap samplers."""

    def __init__(
        self,
        *,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        seed: int | None = None,
        fixed: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(points=points_to_evaluate or (), max_concurrent=max_concurrent)
        self.own_seed = seed
        self.fixed = dict(fixed or {})
        self.options = options

    # ------------------------------------------------------------------------------------------------- asking

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        from windlass.tune.search.registry import own_objectives  # lazy: the registry is above

        objectives = objectives if objectives.metrics else own_objectives(self) or objectives
        if not objectives.metrics:
            raise BadValueError(
                f"{self.name} learns from results, but no metric is set",
                hint='pass TuneConfig(metric="loss", mode="min", ...)',
                code="unknown-metric",
            )
        library("optuna", self.name)
        from windlass.tune.search.optuna import model  # lazy: costs 0.4 s

        super().open(
            space=space,
            objectives=objectives,
            seed=seed if self.own_seed is None else self.own_seed,
            num_samples=num_samples,
        )
        for node in self.space.parameters:
            check_searchable(node, self.name)
        self._lib = model
        self._nodes = {node.key: node for node in self.space.parameters}
        self._distributions = {
            key: distribution
            for key, node in self._nodes.items()
            if (distribution := distribution_of(node)) is not None
        }
        self._model = model.Model(
            ["maximize" if is_max else "minimize" for is_max in objectives.is_max], name=self.study_name or "windlass"
        )
        self._fixed_params = self._params_by_name(self.fixed)
        self._ahead: list[_AskedAhead] = []
        self._indexes: dict[int, int] = {}
        self.sampler(0)

    def sampler(self, number: int) -> BaseSampler:
        """Create a new sampler for one trial's call of `ask`.

        Raises:
            UsageError: the sampler does not have one of the options.
        """
        seed = draw_int(self.seed, "sampler", number) % 2**32
        with self._lib.quiet():
            made = self.make_sampler(seed)
            if self._fixed_params:
                import optuna  # lazy: loaded already

                made = optuna.samplers.PartialFixedSampler(self._fixed_params, made)
        return made

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the sampler."""
        raise NotImplementedError

    @overload
    def suggest(self, number: int) -> Suggestions: ...

    @overload
    def suggest(self, number: str) -> dict[str, Any] | str | None: ...

    def suggest(self, number: int | str) -> Suggestions | dict[str, Any] | str | None:
        """Return the next configuration; see `SearchAlgorithm.suggest`.

        A string id means that there is no sweep.
        """
        if isinstance(number, str):
            return self.suggest_standalone(number)
        for asked in self._ahead:
            if asked.number == number:
                return asked.suggestion
        if self._ahead and number < self._ahead[-1].number:
            self._drop()
        if not 0 <= number < self.num_trials():
            return NoSuggestion.FINISHED
        if self.max_concurrent and len(self._live) + len(self._ahead) >= self.max_concurrent:
            return NoSuggestion.NOT_YET
        attrs = self._model.study_attrs()
        if number < len(self._presets):
            config, assigned = self._presets[number].draw(self.seed, number)
            suggestion = Suggestion(config=config, assigned={**flat(self.points[number]), **assigned})
            index = self._add(suggestion)
        else:
            suggestion, index = self.ask(number)
        self._ahead.append(_AskedAhead(number, suggestion, index, attrs))
        return suggestion

    def ask(self, number: int) -> tuple[Suggestion, int]:
        """Request a point from the model, which keeps it as its last one, as in a restored sweep."""
        before = self._model.study_attrs()
        trial = self._model.ask(self.sampler(number))
        config, assigned = self.configure(number, trial)
        attrs = {
            key: value
            for key, value in self._model.trial_attrs(len(self._model) - 1).items()
            if "relative_params" not in key  # these are in the configuration
        }
        after = self._model.study_attrs()
        self._model.forget_last(after)
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        note = {name: found for name, found in (("trial", attrs), ("study", changed)) if found}
        index = self._add(Suggestion(config=config, note=note))
        return Suggestion(config=config, assigned=assigned, note=None if self.is_recalled else note or None), index

    def configure(self, number: int, trial: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration for a trial of the sampler."""

        def draw(node: DomainNode | Pick) -> Any:
            distribution = self._distributions.get(node.key)
            if distribution is None:
                return draw_int(self.seed, "space", number, node.key)
            return to_value(node, self._lib.suggest(trial, node.key, distribution))

        return self.space.resolve(draw)

    # ----------------------------------------------------------------------------------------------- telling

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Record a suggestion; see `SearchAlgorithm.on_suggested`."""
        super().on_suggested(number, suggestion)
        if (
            self._ahead
            and self._ahead[0].number == number
            and is_same(self._ahead[0].suggestion.config, suggestion.config)
        ):
            self._indexes[number] = self._ahead.pop(0).index
            return
        self._drop()
        if self.is_recalled and number >= len(self._presets):
            before = self._model.study_attrs()
            again, index = self.ask(number)
            if is_same(again.config, suggestion.config):
                self._indexes[number] = index
                return
            self._model.forget_last(before)
        self._indexes[number] = self._add(suggestion)

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Learn from the end of a trial; see `SearchAlgorithm.on_complete`."""
        super().on_complete(number, result)
        self._drop()
        self._model.tell(self._indexes.pop(number), None if result is None else self._values(result))

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Learn from known points; see `SearchAlgorithm.add_known`.

        Raises:
            UsageError: a point is not in the space.
        """
        self._drop()
        for config, result in zip(configs, results, strict=True):
            if self.space.locate(config) is None:
                raise BadValueError(
                    f"a known point is not in the space: {config!r}",
                    hint="give a value within its bounds to every parameter",
                    code="searcher-option",
                )
            self._model.tell(self._add(Suggestion(config=config)), self._values(result))

    def settings(self) -> Mapping[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`."""
        settings = {**super().settings(), **self.options}
        if self.own_seed is not None:
            settings["seed"] = self.own_seed
        if self.fixed:
            settings["fixed"] = self.fixed
        return settings

    # -------------------------------------------------------------------------------------------------------- inside

    def _drop(self) -> None:
        while self._ahead:
            self._model.forget_last(self._ahead.pop().study_attrs)

    def _add(self, suggestion: Suggestion) -> int:
        """Add a pending point to the model; a point outside the space has no parameters."""
        note = suggestion.note or {}
        params = self._params_of(suggestion.config)
        self._model.set_study_attrs(note.get("study", {}))
        return self._model.add(params, self._distributions, note.get("trial"))

    def _params_of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        found = self.space.locate(config) or {}
        return {key: to_param(self._nodes[key], value) for key, value in found.items() if key in self._distributions}

    def _values(self, result: Metrics) -> list[float]:
        values = [result.get(name) for name in self.objectives.metrics]
        return [float("nan") if not isinstance(value, (int, float)) else float(value) for value in values]

    def _params_by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        named = flat(values)
        known = {node.name: node for node in self._nodes.values()}
        unknown = sorted(set(named) - set(known))
        if unknown:
            raise BadValueError(
                f"{self.name} fixes `{unknown[0]}`, which the space does not have",
                hint=f"it has {', '.join(f'`{name}`' for name in known)}",
                code="searcher-option",
            )
        return {known[name].key: to_param(known[name], value) for name, value in named.items()}
