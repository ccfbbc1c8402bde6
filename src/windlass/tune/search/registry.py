"""Creation of searchers by name, from a sweep's journal, or from a value of `search_alg=`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.phrases import count
from windlass.tune.errors import BadValueError, SpaceError
from windlass.tune.search.protocol import Objectives, SearchAlgorithm
from windlass.tune.search.searcher import AdaptedSearcher
from windlass.tune.space.values import from_json, import_name, imported, to_json

__all__ = [
    "NAMES",
    "as_searcher",
    "create_searcher",
    "missing_searcher",
    "own_names",
    "own_objectives",
    "searcher_from",
    "searcher_settings",
]

_HERE = "windlass.tune.search"
_CLASSES = {
    "BOHB": f"{_HERE}.optuna.bohb",
    "BasicVariantGenerator": f"{_HERE}.basic_variant",
    "CMAES": f"{_HERE}.optuna.samplers",
    "ConcurrencyLimiter": f"{_HERE}.concurrency_limiter",
    "GP": f"{_HERE}.optuna.samplers",
    "NSGA2": f"{_HERE}.optuna.samplers",
    "NSGA3": f"{_HERE}.optuna.samplers",
    "OptunaSearch": f"{_HERE}.optuna.optuna_search",
    "QuasiRandom": f"{_HERE}.quasi_random",
    "Repeater": f"{_HERE}.repeater",
    "TPE": f"{_HERE}.optuna.samplers",
    "TuneBOHB": f"{_HERE}.optuna.tune_bohb",
}
NAMES = {
    "variant_generator": "BasicVariantGenerator",
    "random": "BasicVariantGenerator",
    "grid": "BasicVariantGenerator",
    "quasi_random": "QuasiRandom",
    "optuna": "OptunaSearch",
    "tpe": "TPE",
    "gp": "GP",
    "cmaes": "CMAES",
    "nsga2": "NSGA2",
    "nsga3": "NSGA3",
    "bohb": "BOHB",
}
"""Names for `create_searcher` and for `sweep:` in a file."""

_ONLY_IN_RAY = {
    "ax": "ray.tune.search.ax.AxSearch",
    "bayesopt": "ray.tune.search.bayesopt.BayesOptSearch",
    "hebo": "ray.tune.search.hebo.HEBOSearch",
    "hyperopt": "ray.tune.search.hyperopt.HyperOptSearch",
    "nevergrad": "ray.tune.search.nevergrad.NevergradSearch",
    "zoopt": "ray.tune.search.zoopt.ZOOptSearch",
}


def create_searcher(search_alg: str, **kwargs: Any) -> SearchAlgorithm:
    """Create the searcher with a short name.

    `metric` and `mode` are passed to searchers that accept them.

    Raises:
        UsageError: the searcher or an option is unknown.
        PreconditionError: it is a Ray Tune searcher that windlass does not have.
    """
    name = search_alg.lower()
    if name in _ONLY_IN_RAY:
        raise missing_searcher(name)
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        raise BadValueError(
            f"unknown searcher `{search_alg}`",
            hint=f"did you mean `{near[0]}`?" if near else f"available: {', '.join(NAMES)}",
            code="unknown-name",
        )
    kind = class_named(NAMES[name])
    parameters = inspect.signature(kind).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in list(kwargs):
        if option in ("metric", "mode") and option not in parameters:
            del kwargs[option]
        elif option not in parameters and not takes_all:
            near = difflib.get_close_matches(option, parameters, 1)
            raise BadValueError(
                f"{search_alg} has no option `{option}`",
                hint=f"did you mean `{near[0]}`?" if near else f"it has {', '.join(parameters)}",
                code="searcher-option",
            )
    made: SearchAlgorithm = kind(**kwargs)
    return made


def as_searcher(given: Any) -> SearchAlgorithm:
    """Return the searcher for a value of `search_alg`; None stands for random and grid search.

    Args:
        given: a searcher of windlass, a plug-in or searcher object of Ray Tune (`suggest(trial_id)`), a name, or None.

    Raises:
        UsageError: it is none of these.
    """
    if given is None:
        given = class_named("BasicVariantGenerator")()
    if isinstance(given, str):
        return create_searcher(given)
    if isinstance(given, type):
        raise BadValueError(
            f"search_alg is the class {given.__name__}",
            hint=f"pass an object: {given.__name__}(...)",
            code="unknown-name",
        )
    if all(hasattr(given, name) for name in ("open", "suggest", "on_suggested", "on_complete")):
        found: SearchAlgorithm = given
        return found
    if all(hasattr(given, name) for name in ("suggest", "on_trial_complete")):
        return AdaptedSearcher(given)
    raise BadValueError(
        f"invalid search_alg {given!r}: it has no `suggest`",
        hint="pass a searcher, such as tune.TPE()",
        code="unknown-name",
    )


def own_names(searcher: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the metrics and modes that were passed to the searcher itself; empty if there were none."""
    searcher = getattr(searcher, "plugin", searcher)
    while hasattr(searcher, "searcher"):
        searcher = searcher.searcher
    metric, mode = (
        () if said is None else (said,) if isinstance(said, str) else tuple(said)
        for said in (getattr(searcher, "metric", None), getattr(searcher, "mode", None))
    )
    return metric, mode


def own_objectives(searcher: Any) -> Objectives | None:
    """Return the objectives that were passed to the searcher itself, or None if there were none."""
    metrics, modes = own_names(searcher)
    if not metrics or not modes:
        return None
    if len(metrics) != len(modes):
        raise BadValueError(
            f"the searcher has {count(len(metrics), 'metric')} and {count(len(modes), 'mode')}",
            hint="pass one mode per metric",
            code="searcher-option",
        )
    return Objectives(metrics=metrics, is_max=tuple(one == "max" for one in modes))


def class_named(name: str) -> Any:
    """Import one of windlass's searcher classes."""
    return getattr(importlib.import_module(_CLASSES[name]), name)


def searcher_settings(searcher: SearchAlgorithm) -> dict[str, Any]:
    """Return `{"type": ..., **arguments}` as JSON, in which classes from other packages have their import path."""
    found = dict(getattr(searcher, "settings", dict)() or {})
    kind = type(searcher)
    settings: dict[str, Any] = to_json({"type": import_name(kind) or kind.__qualname__, **found}, "search_alg")
    return settings


def searcher_from(settings: Mapping[str, Any]) -> SearchAlgorithm:
    """Decode the output of `searcher_settings` to a searcher that has not been opened.

    Raises:
        PreconditionError: it was created with objects that the journal does not contain.
    """
    kind = settings["type"]
    arguments = {name: from_json(value) for name, value in settings.items() if name != "type"}
    if kind == "AdaptedSearcher" or any(
        isinstance(value, Mapping) and "$object" in value for value in arguments.values()
    ):
        raise _needs_code(arguments.get("plugin", kind), "it was created with objects that are not in the journal")
    if "searcher" in arguments:
        arguments["searcher"] = searcher_from(arguments["searcher"])
    try:
        made: SearchAlgorithm = (class_named(kind) if kind in _CLASSES else imported(kind))(**arguments)
    except (SpaceError, TypeError) as error:
        raise _needs_code(kind, str(error)) from error
    return made


def missing_searcher(name: str) -> PreconditionError:
    """Return the error for a Ray Tune searcher that windlass does not have."""
    return PreconditionError(
        f"windlass has no searcher `{name}`",
        hint=f"use tune.TPE(), or install Ray Tune and {name}'s library and pass search_alg={_ONLY_IN_RAY[name]}(...)",
        code="unknown-name",
    )


def _needs_code(kind: str, why: str) -> PreconditionError:
    return PreconditionError(
        f"cannot recreate the searcher of this sweep, {kind}: {why}",
        hint="pass it again with search_alg=",
        code="module-not-found",
    )
