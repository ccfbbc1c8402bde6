"""Changes to a configuration in population based training: resample, multiply, or step to a neighbour.

Source: Jaderberg et al. 2017, "Population based training of neural networks" (arXiv 1711.09846), section 3; the draws
are made in the order of Ray Tune's, so the same draws give the same configurations.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from windlass.tune.errors import BadTypeError
from windlass.tune.rng import seeded
from windlass.tune.schedulers.fifo import refuse
from windlass.tune.space.values import flat, plain

__all__ = ["Config", "Mutations", "check_mutations", "draw_value", "explore", "fill", "mutated", "tag_of"]

Config = dict[str, Any]
Mutations = Mapping[str, Any]


def check_mutations(mutations: Mutations, path: str = "") -> None:
    """Reject mutations that cannot be applied.

    Raises:
        UsageError: a value is none of list, function, space and nested dictionary (`invalid-value`).
    """
    for key, value in mutations.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            if "grid_search" in value:
                raise refuse(f"hyperparam_mutations[{name!r}] is a grid", f"write the list: {value['grid_search']!r}")
            check_mutations(value, f"{name}/")
        elif hasattr(value, "compute"):
            hint = "use tune.uniform, tune.choice and the like, or a function without arguments"
            raise refuse(f"hyperparam_mutations[{name!r}] is a sample_from, which cannot be drawn on its own", hint)
        elif not (_is_list(value) or _is_domain(value) or callable(value)):
            hint = "give a list of values, a space such as tune.uniform(0, 1), or a function without arguments"
            raise BadTypeError(f"hyperparam_mutations[{name!r}] is {value!r}", hint=hint, code="invalid-value")
        elif _is_list(value) and not value:
            raise refuse(f"hyperparam_mutations[{name!r}] is empty", "list the values that it can take")


def explore(
    config: Config, mutations: Mutations, rng: Random, resample_probability: float, factors: Sequence[float]
) -> tuple[Config, dict[str, Any]]:
    """Return a copy of a configuration with every mutated value changed, and a description of each change."""
    new = copy.deepcopy(config)
    done: dict[str, Any] = {}
    for key, source in mutations.items():
        if isinstance(source, Mapping):
            new[key], done[key] = explore(config[key], source, rng, resample_probability, factors)
        elif _is_list(source):
            new[key], done[key] = _step(config[key], source, rng, resample_probability)
        else:
            new[key], done[key] = _scale(config[key], source, rng, resample_probability, factors)
    return new, done


def draw_value(source: Any, rng: Random) -> Any:
    """Sample a value from a list, a space, a function or a nested dictionary of those."""
    if isinstance(source, Mapping):
        return {key: draw_value(below, rng) for key, below in source.items()}
    if _is_domain(source):
        return source.sample(random_state=rng)
    if _is_list(source):
        return rng.choice(source)
    with seeded(rng.getrandbits(64)):
        return plain(source())


def fill(config: Config, sources: Mutations, draw: Callable[[Any], Any]) -> Config:
    """Sample the values that a configuration lacks, in place; return them, nested."""
    drawn: Config = {}
    for key, source in sources.items():
        if key not in config:
            config[key] = drawn[key] = draw(source)
        elif isinstance(source, Mapping) and isinstance(config[key], dict):
            below = fill(config[key], source, draw)
            if below:
                drawn[key] = below
    return drawn


def mutated(config: Config, mutations: Mutations) -> Config:
    """Return the part of a configuration that mutations change, nested."""
    return {
        key: mutated(config[key], source) if isinstance(source, Mapping) else config[key]
        for key, source in mutations.items()
        if key in config
    }


def tag_of(name: object, values: Mapping[str, Any]) -> str:
    """Return the tag for a clone, such as `3@perturbed[lr=0.01]`."""
    words = []
    for path, value in sorted(flat(values).items()):
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        words.append(f"{path.rpartition('/')[2]}={shown}")
    return f"{name}@perturbed[{','.join(words)}]"


def _step(value: Any, values: Sequence[Any], rng: Random, resample_probability: float) -> tuple[Any, str]:
    if rng.random() < resample_probability or value not in values:
        return rng.choice(values), "resample"
    shift, index = rng.choice([-1, 1]), values.index(value)
    moved = min(max(index + shift, 0), len(values) - 1)
    return values[moved], f"shift {'left' if shift < 0 else 'right'}{' (noop)' if moved == index else ''}"


def _scale(
    value: Any, source: Any, rng: Random, resample_probability: float, factors: Sequence[float]
) -> tuple[Any, str]:
    if rng.random() < resample_probability:
        new, done = draw_value(source, rng), "resample"
    else:
        factor = rng.choice(factors)
        if not isinstance(value, (int, float)):
            raise refuse(f"{value!r} cannot be multiplied by {factor}", "list the values that it can take instead")
        new, done = value * factor, f"* {factor}"
    if isinstance(value, bool):
        return bool(new), done
    return round(new) if isinstance(value, int) else new, done


def _is_list(source: Any) -> bool:
    return isinstance(source, (list, tuple))


def _is_domain(source: Any) -> bool:
    return hasattr(source, "sample") and hasattr(source, "is_valid")
