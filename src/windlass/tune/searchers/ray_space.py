"""A space of windlass in the classes of Ray Tune: the plug-ins that Ray brings look for those, and skip everything else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from windlass.tune.space import Categorical, Computed, Domain, Float, Integer, NormalFloat

__all__ = ["is_of_ray", "ray_space"]


def is_of_ray(plugin: object) -> bool:
    """Whether an object is a searcher by Ray Tune's class, and so expects Ray's domains."""
    ray = sys.modules.get("ray.tune.search")  # an object of that class exists only where it is imported
    kind = getattr(ray, "Searcher", None)
    return isinstance(kind, type) and isinstance(plugin, kind)


def ray_space(value: Any) -> Any:
    """The same space with each domain as Ray's own; fixed values and `{"grid_search": [...]}` stay as they are."""
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
