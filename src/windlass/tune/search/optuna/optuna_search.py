"""`OptunaSearch` with Ray Tune's name and arguments: any Optuna sampler, optionally with a space written for Optuna."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.tune.errors import BadTypeError, BadValueError
from windlass.tune.search.optuna.distributions import check_searchable, plain_distribution
from windlass.tune.search.optuna.from_optuna import as_space
from windlass.tune.search.optuna.searcher import OptunaSearcher
from windlass.tune.search.protocol import Objectives, Suggestion
from windlass.tune.space import Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial

__all__ = ["OptunaSearch"]

DefineByRun = Callable[[Any], Mapping[str, Any] | None]


class OptunaSearch(OptunaSearcher):
    """Search with an Optuna sampler, by default TPE."""

    name = "OptunaSearch"

    def __init__(
        self,
        space: Mapping[str, Any] | DefineByRun | None = None,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: BaseSampler | None = None,
        study_name: str | None = None,
        storage: object | None = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[Any] | None = None,
    ) -> None:
        """Describe the search.

        Args:
            space: distributions of Optuna by name, a space of windlass, or a function of a trial that suggests values
                and may return constants; by default `param_space`. With one, `param_space` holds constants only.
            metric: instead of TuneConfig's; several make a multi-objective search.
            mode: `min` or `max`, one per metric.
            points_to_evaluate: configurations to try first.
            sampler: an Optuna sampler; trials use reseeded copies if its generators are found, else the object itself.
            study_name: name in Optuna's own messages.
            storage: not supported, because the sweep's journal stores everything.
            seed: seed that replaces the sweep's.
            evaluated_rewards: results of `points_to_evaluate`, which are then not run.

        Raises:
            UsageError: arguments conflict.
        """
        if storage is not None:
            raise BadValueError(
                f"OptunaSearch(storage={storage!r}) is not supported: the sweep's journal keeps everything",
                hint="leave out storage",
                code="searcher-option",
            )
        if metric is None and mode is not None and not isinstance(mode, str):
            message = f"OptunaSearch has the modes {', '.join(mode)} but no metrics"
            raise BadValueError(
                message, hint="name one metric per mode: metric=['loss', 'size']", code="searcher-option"
            )
        points, rewards = list(points_to_evaluate or ()), evaluated_rewards
        if rewards is not None and len(rewards) != len(points):
            raise BadValueError(
                f"OptunaSearch has {len(points)} points_to_evaluate but {len(rewards)} evaluated_rewards",
                hint="pass one reward per point",
                code="searcher-option",
            )
        super().__init__(points_to_evaluate=() if rewards is not None else points, seed=seed)
        self.metric = metric
        self.mode = mode
        self.own_space = space
        self.given_sampler = sampler
        self.study_name = study_name
        self._known = list(zip(points, rewards or (), strict=False))

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`."""
        self._by_run: DefineByRun | None = None
        if self.own_space is not None:
            if not Space(space).is_fixed:
                raise BadValueError(
                    "OptunaSearch has its own space, but param_space draws values too",
                    hint="define the space in only one of them",
                    code="searcher-option",
                )
            if callable(self.own_space):
                self._by_run = self.own_space
            else:
                space = {**space, **as_space(self.own_space)}
        super().open(space=space, objectives=objectives, seed=seed, num_samples=num_samples)
        if self._known:
            configs = [dict(point) for point, _ in self._known]
            rewards = [list(value) if isinstance(value, Sequence) else [value] for _, value in self._known]
            self.add_known(configs, [dict(zip(objectives.metrics, values, strict=True)) for values in rewards])

    @staticmethod
    def convert_search_space(space: Mapping[str, Any], prefix: str = "") -> dict[str, BaseDistribution]:
        """Return Optuna's distributions for a space by name, which is `a/b` for nested values.

        Raises:
            BadValueError: it has a grid, or a kind that Optuna has no distribution for (`space-not-searchable`).
        """
        found = {}
        for node in Space(space).parameters:
            check_searchable(node, "OptunaSearch")
            found[f"{prefix}/{node.name}" if prefix else node.name] = plain_distribution(node)
        return found

    def make_sampler(self, seed: int) -> BaseSampler:
        """Create the given sampler with a new seed, or else TPE."""
        import optuna  # lazy: loaded by `open`

        if self.given_sampler is None:
            return optuna.samplers.TPESampler(seed=seed)
        return self._lib.reseeded(self.given_sampler, seed) or self.given_sampler

    def configure(self, number: int, trial: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration for a trial; a define-by-run function sets every value itself."""
        if self._by_run is None:
            return super().configure(number, trial)
        captor = _Captor(trial)
        constants = self._by_run(captor) or {}
        if not isinstance(constants, Mapping):
            raise BadTypeError(
                f"the function given as space returned {constants!r}",
                hint="return a mapping of constants, or nothing",
                code="searcher-option",
            )
        fixed, _ = self.space.draw(self.seed, number)
        assigned = {**captor.values, **constants}
        return _nested(fixed, assigned), assigned

    def ask(self, number: int) -> tuple[Suggestion, int]:
        """Request a point from the model.

        The samples of a define-by-run function are recorded, because they are stored nowhere else.
        """
        if self._by_run is None:
            return super().ask(number)
        before = self._model.study_attrs()
        trial = self._model.ask(self.sampler(number))
        config, assigned = self.configure(number, trial)
        attrs, after = self._model.trial_attrs(len(self._model) - 1), self._model.study_attrs()
        note = {
            "trial": {key: value for key, value in attrs.items() if "relative_params" not in key},
            "study": {key: value for key, value in after.items() if before.get(key) != value},
            "params": dict(trial.params),
            "distributions": self._lib.distributions_to_json(trial.distributions),
        }
        self._model.forget_last(after)
        suggestion = Suggestion(config=config, assigned=assigned, note=note)
        return suggestion, self._add(suggestion)

    def settings(self) -> dict[str, object]:
        """Return the arguments as JSON; see `SearchAlgorithm.settings`.

        Optuna objects are stored only by name, and must be passed again to restore a sweep.
        """
        settings = dict(super().settings())
        given = {"metric": self.metric, "mode": self.mode, "study_name": self.study_name}
        settings.update({name: value for name, value in given.items() if value is not None})
        if self.given_sampler is not None:
            settings["sampler"] = {"$object": type(self.given_sampler).__name__}
        if self.own_space is not None:
            settings["space"] = {"$object": getattr(self.own_space, "__qualname__", "distributions")}
        if self._known:
            settings["points_to_evaluate"] = [dict(point) for point, _ in self._known]
            settings["evaluated_rewards"] = [value for _, value in self._known]
        return settings

    def _add(self, suggestion: Suggestion) -> int:
        note = suggestion.note or {}
        if "distributions" not in note:
            return super()._add(suggestion)
        self._model.set_study_attrs(note.get("study", {}))
        distributions = self._lib.distributions_from_json(note["distributions"])
        return self._model.add(note["params"], distributions, note.get("trial"))


class _Captor:
    """Trial that records its suggested values."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.values: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._trial, name)
        if not name.startswith("suggest_"):
            return found

        @functools.wraps(found)
        def suggest(*args: Any, **kwargs: Any) -> Any:
            value = found(*args, **kwargs)
            self.values[inspect.signature(found).bind(*args, **kwargs).arguments["name"]] = value
            return value

        return suggest


def _nested(fixed: Mapping[str, Any], assigned: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"a/b": 1}` as `{"a": {"b": 1}}`, on top of fixed values."""
    config = dict(fixed)
    for name, value in assigned.items():
        *above, last = name.split("/")
        inner = config
        for part in above:
            below = dict(inner.get(part) or {})
            inner[part] = below
            inner = below
        inner[last] = value
    return config
