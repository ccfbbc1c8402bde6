"""Conversion between windlass's search spaces and the parameters of Optuna's samplers.

A sampler sees floats, integers counted in steps, shares of a normal distribution, and numbers of options, so every
primitive can be searched, the quantised logarithmic ones too, and options may be any objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.tune.errors import BadValueError
from windlass.tune.search.optuna.from_optuna import Steps
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Float, Integer, NormalFloat
from windlass.tune.space.tree import DomainNode, Pick

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["check_searchable", "distribution_of", "plain_distribution", "to_param", "to_value"]

_LEAST_SHARE = 2.0**-30


def check_searchable(node: DomainNode | Pick, who: str) -> None:
    """Check that a model can search a parameter.

    Raises:
        UsageError: it is a grid.
    """
    if isinstance(node, Pick) and node.is_grid:
        raise BadValueError(
            f"`{node.name}` is a grid, which {who} cannot search",
            hint="use tune.choice, or leave out search_alg to run the whole grid",
            code="space-not-searchable",
        )


def distribution_of(node: DomainNode | Pick) -> BaseDistribution | None:
    """Return the distribution from which the sampler samples a node, or None for a computed value."""
    from optuna import distributions  # lazy: costs 0.2 s

    if isinstance(node, Pick):
        return distributions.CategoricalDistribution(tuple(range(len(node.options))))
    domain = node.domain
    if isinstance(domain, Computed):
        return None
    if isinstance(domain, Categorical):
        return distributions.CategoricalDistribution(tuple(range(len(domain.categories))))
    if isinstance(domain, Integer):
        return distributions.IntDistribution(domain.first, domain.last, log=domain.is_log)
    if isinstance(domain, Steps):
        return domain.distribution
    if isinstance(domain, NormalFloat):
        return distributions.FloatDistribution(_LEAST_SHARE, 1 - _LEAST_SHARE)
    assert isinstance(domain, Float)
    if domain.step is not None and not domain.is_log:
        num_steps = round((domain.upper - domain.lower) / domain.step)
        return distributions.IntDistribution(0, num_steps)
    return distributions.FloatDistribution(domain.lower, domain.upper, log=domain.is_log)


def plain_distribution(node: DomainNode | Pick) -> BaseDistribution:
    """Return the distribution over a domain's own values, as users write it for Optuna.

    Raises:
        BadValueError: there is none.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # lazy: costs 0.2 s

    domain = None if isinstance(node, Pick) else node.domain
    if isinstance(domain, Categorical):
        return CategoricalDistribution(domain.categories)
    if isinstance(domain, Integer):
        upper = domain.upper - 1 if domain.step == 1 else domain.upper
        return IntDistribution(domain.lower, upper, log=domain.is_log, step=1 if domain.is_log else domain.step)
    if isinstance(domain, Float):
        step = None if domain.is_log else domain.step
        return FloatDistribution(domain.lower, domain.upper, log=domain.is_log, step=step)
    raise BadValueError(
        f"`{node.name}` is {'a choice among spaces' if domain is None else domain}, for which Optuna has no distribution",
        hint="pass the space to the sweep as param_space, which supports it",
        code="space-not-searchable",
    )


def to_value(node: DomainNode | Pick, param: Any) -> Any:
    """Return the value for a sampled parameter, or the index of the chosen option."""
    if isinstance(node, Pick):
        return param
    domain = node.domain
    if isinstance(domain, Categorical):
        return domain.categories[param]
    if isinstance(domain, Integer):
        return param * domain.step
    if isinstance(domain, Steps):
        return param
    if isinstance(domain, NormalFloat):
        return domain.at_share(param)
    assert isinstance(domain, Float)
    if domain.step is not None and not domain.is_log:
        return domain.nearest(domain.lower + param * domain.step)
    return domain.nearest(param)


def to_param(node: DomainNode | Pick, value: Any) -> Any:
    """Return the parameter that corresponds to a value in the domain."""
    if isinstance(node, Pick):
        return value
    domain = node.domain
    if isinstance(domain, Categorical):
        return domain.index(value)
    if isinstance(domain, Integer):
        return min(max(round(value / domain.step), domain.first), domain.last)
    if isinstance(domain, Steps):
        return value
    if isinstance(domain, NormalFloat):
        return min(max(domain.share_of(value), _LEAST_SHARE), 1 - _LEAST_SHARE)
    assert isinstance(domain, Float)
    if domain.step is not None and not domain.is_log:
        return round((value - domain.lower) / domain.step)
    return float(value)
