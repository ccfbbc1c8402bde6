"""Base class for plug-ins with the methods of Ray Tune's `Searcher`, and the adapter that runs them.

class Mine(Searcher):
    def suggest(self, trial_id): return {"x": 3}                        # None: not now; Searcher.FINISHED: no more
    def on_trial_result(self, trial_id, result): ...                    # optional
    def on_trial_complete(self, trial_id, result=None, error=False): ...
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.errors import WindlassError
from windlass.tune.errors import BadValueError
from windlass.tune.search.protocol import NoSuggestion, Objectives, Suggestion, Suggestions
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Domain, Float, Integer, NormalFloat
from windlass.tune.space.space import Space
from windlass.tune.space.values import import_name, is_same, plain
from windlass.tune.trial import Metrics

__all__ = ["AdaptedSearcher", "Searcher", "is_of_ray", "ray_space"]


class Searcher:
    """Base class for plug-ins; any object with the same methods works too."""

    FINISHED = "FINISHED"

    def __init__(self, metric: str | list[str] | None = None, mode: str | list[str] | None = None) -> None:
        self._metric = metric
        self._mode = mode

    @property
    def metric(self) -> str | list[str] | None:
        """Metric or metrics to optimize."""
        return self._metric

    @property
    def mode(self) -> str | list[str] | None:
        """Mode of each metric, `min` or `max`."""
        return self._mode

    def set_search_properties(self, metric: Any, mode: Any, config: dict[str, Any], **spec: Any) -> bool:
        """Set the sweep's metric, mode and space; return False if they are already set."""
        del metric, mode, config, spec
        return False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration, None if there is none now, or `FINISHED` if there are no more."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Metrics) -> None:
        """Called when a trial has reported."""

    def on_trial_complete(self, trial_id: str, result: Metrics | None = None, error: bool = False) -> None:
        """Called when a trial has ended."""
        raise NotImplementedError


class AdaptedSearcher:
    """Adapter that makes a plug-in a `SearchAlgorithm`.

    A plug-in has its own state, so it is called once per trial and never ahead. A restored sweep calls it again for its
    earlier trials; if a suggestion differs, the result is passed as a known point, if the plug-in has
    `add_evaluated_point`.
    """

    learns = False

    def __init__(self, plugin: Any) -> None:
        self.plugin = plugin
        self._answers: dict[int, Any] = {}
        self._differing: dict[int, dict[str, Any]] = {}

    def open(self, *, space: Mapping[str, Any], objectives: Objectives, seed: int, num_samples: int) -> None:
        """Start the search; see `SearchAlgorithm.open`.

        Raises:
            UsageError: the plug-in and `param_space` both draw values, or the plug-in does not support this space.
        """
        del seed
        self.objectives = objectives
        self.num_samples = num_samples
        self._space: Mapping[str, Any] = space
        if self._set_properties(space):
            return
        own = Space(space)
        is_one = len(objectives.metrics) <= 1
        if not own.is_fixed:
            taking = getattr(self.plugin, "set_search_properties", None)
            if taking is not None and is_one and getattr(self.plugin, "metric", None) is not None:
                raise BadValueError(
                    f"{self._name} has its own space, but param_space draws values too",
                    hint="define the space in only one of them",
                    code="searcher-option",
                )
            self._space = {}
            return
        self._space, _ = own.draw(0)

    @property
    def _name(self) -> str:
        return type(self.plugin).__name__

    def _set_properties(self, space: Mapping[str, Any]) -> bool:
        """Pass metric, mode and space to the plug-in; return whether it accepted them.

        A plug-in for Ray gets the space in Ray's classes.
        """
        taking = getattr(self.plugin, "set_search_properties", None)
        if taking is None:
            return False
        modes = ["max" if is_max else "min" for is_max in self.objectives.is_max]
        metric, mode = (
            values[0] if len(values) == 1 else values or None for values in (list(self.objectives.metrics), modes)
        )
        given = ray_space(space) if is_of_ray(self.plugin) else dict(space)
        options = {"num_samples": self.num_samples} if _takes_options(taking) else {}
        try:
            return bool(taking(metric, mode, given, **options))
        except WindlassError:
            raise
        except ValueError as error:
            hint = "use what it can search, or another search_alg, such as tune.TPE()"
            message = f"{self._name} refuses this param_space: {error}"
            raise BadValueError(message, hint=hint, code="space-not-searchable") from error
        except Exception as error:  # of another version of the library, or of a space that it cannot express
            hint = "check whether Ray Tune itself supports this version of the library, or use tune.TPE()"
            message = f"{self._name} failed with this param_space: {type(error).__name__}: {error}"
            raise BadValueError(message, hint=hint, code="space-not-searchable") from error

    def settings(self) -> Mapping[str, object]:
        """Return the plug-in's import path.

        Its arguments are unknown, so it must be passed again to restore the sweep.
        """
        kind = type(self.plugin)
        return {"type": "AdaptedSearcher", "plugin": import_name(kind) or kind.__qualname__}

    def suggest(self, number: int) -> Suggestions:
        """Return the plug-in's suggestion; see `SearchAlgorithm.suggest`."""
        if number >= self.num_samples >= 0:
            return NoSuggestion.FINISHED
        if number not in self._answers:
            answer = self.plugin.suggest(_id(number))
            if answer is None:
                return NoSuggestion.NOT_YET
            if answer == Searcher.FINISHED:
                return NoSuggestion.FINISHED
            if not isinstance(answer, Mapping):
                raise BadValueError(
                    f"{self._name}.suggest returned {answer!r:.80}, which is not a configuration",
                    hint="return a dictionary, None (not now), or Searcher.FINISHED",
                    code="invalid-value",
                )
            self._answers[number] = answer
        answer = self._answers[number]
        return Suggestion(config=self._config(answer), assigned=_assigned(self._space, answer))

    def on_suggested(self, number: int, suggestion: Suggestion) -> None:
        """Record a suggestion; see `SearchAlgorithm.on_suggested`."""
        answer = self._answers.pop(number, None)
        if answer is None:
            answer = self.plugin.suggest(_id(number))
        if not isinstance(answer, Mapping) or not is_same(self._config(answer), suggestion.config):
            self._differing[number] = suggestion.config
            self._complete(number, None)

    def on_result(self, number: int, result: Metrics) -> None:
        """Pass a result to the plug-in; see `SearchAlgorithm.on_result`."""
        telling = getattr(self.plugin, "on_trial_result", None)
        if telling is not None and number not in self._differing:
            telling(_id(number), result)

    def on_complete(self, number: int, result: Metrics | None) -> None:
        """Pass the end of a trial to the plug-in; see `SearchAlgorithm.on_complete`."""
        config = self._differing.pop(number, None)
        if config is None:
            self._complete(number, result)
        elif result is not None:
            self.add_known([config], [result])

    def add_known(self, configs: Sequence[dict[str, Any]], results: Sequence[Metrics]) -> None:
        """Pass known points to the plug-in if it supports that; see `SearchAlgorithm.add_known`."""
        adding = getattr(self.plugin, "add_evaluated_point", None)
        for config, result in zip(configs, results, strict=True):
            values = [result.get(name) for name in self.objectives.metrics]
            if adding is not None and values:
                with contextlib.suppress(NotImplementedError):
                    adding(config, values[0] if len(values) == 1 else values)

    def _config(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fixed values, overridden at any depth by the plug-in's values."""
        config: dict[str, Any] = _merged(self._space, answer)
        missing = _undrawn(config, ())
        if missing:
            raise BadValueError(
                f"{self._name} suggested no value for `{missing}`",
                hint="fix the value in param_space, or use a search_alg that can draw it, such as tune.TPE()",
                code="space-not-searchable",
            )
        return config

    def _complete(self, number: int, result: Metrics | None) -> None:
        self.plugin.on_trial_complete(_id(number), result=result, error=result is None)


def _takes_options(taking: Any) -> bool:
    """Return whether `set_search_properties` accepts options, which it did not before Ray 1.9."""
    try:
        parameters = inspect.signature(taking).parameters.values()
    except ValueError:
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _merged(below: Any, above: Any) -> Any:
    """Merge `above` into `below`.

    Entries of a list may be named by their indices, as Ray's plug-ins do.
    """
    if isinstance(above, Mapping) and isinstance(below, Mapping) and not _is_grid(below):
        return {name: _merged(below.get(name), above.get(name, below.get(name))) for name in {**below, **above}}
    if isinstance(above, Mapping) and type(below) in (list, tuple) and all(str(name).isdigit() for name in above):
        said = {int(name): value for name, value in above.items()}
        return type(below)(_merged(value, said.get(place, value)) for place, value in enumerate(below))
    return plain(above)


def _is_grid(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and "grid_search" in value


def _undrawn(value: Any, path: tuple[Any, ...]) -> str:
    """Return the name of the first parameter that is still a range or a choice, or an empty string."""
    if isinstance(value, Domain) or (isinstance(value, Mapping) and _is_grid(value)):
        return "/".join(map(str, path))
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    return next((found for name, below in inner if (found := _undrawn(below, (*path, name)))), "")


def _assigned(space: Any, answer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the sampled values, flat: those that the space does not fix."""
    found: dict[str, Any] = {}
    for name, value in answer.items():
        below = space.get(name) if isinstance(space, Mapping) else None
        if isinstance(value, Mapping) and value:
            found.update(_assigned(below, value, f"{prefix}{name}/"))
        elif below is None or isinstance(below, (Domain, Mapping, list, tuple)) or not is_same(below, value):
            found[f"{prefix}{name}"] = plain(value)
    return found


def _id(number: int) -> str:
    """Return the id of a trial as passed to the plug-in."""
    return f"{number:05d}"


def is_of_ray(plugin: object) -> bool:
    """Return whether an object is a Ray Tune `Searcher`, which expects Ray's domains."""
    ray = sys.modules.get("ray.tune.search")  # an object of that class exists only where it is imported
    kind = getattr(ray, "Searcher", None)
    return isinstance(kind, type) and isinstance(plugin, kind)


def ray_space(value: Any) -> Any:
    """Return a space with windlass's domains replaced by Ray's.

    Fixed values and `{"grid_search": [...]}` stay the same.
    """
    if isinstance(value, Domain):
        return _domain(value)
    if isinstance(value, Mapping):
        return {name: ray_space(below) for name, below in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(ray_space(below) for below in value)
    return value


def _domain(domain: Domain) -> Any:
    from ray import tune  # lazy: the plug-in's module has loaded it

    if isinstance(domain, Categorical):
        categories = [ray_space(category) for category in domain.categories]
        return {"grid_search": categories} if domain.is_grid else tune.choice(categories)
    if isinstance(domain, Computed):
        return tune.sample_from(domain.func) if callable(domain.func) else {"eval": domain.func}
    if isinstance(domain, NormalFloat):
        made = tune.randn(domain.mean, domain.sd)
        return made if domain.step is None else tune.qrandn(domain.mean, domain.sd, domain.step)
    if isinstance(domain, (Float, Integer)):
        name = f"{'log' if domain.is_log else ''}{'uniform' if isinstance(domain, Float) else 'randint'}"
        is_stepped = domain.step is not None if isinstance(domain, Float) else domain.step != 1
        bounds = (domain.lower, domain.upper)
        return getattr(tune, f"q{name}")(*bounds, domain.step) if is_stepped else getattr(tune, name)(*bounds)
    return domain
