"""`generate_variants`, under Ray Tune's import path."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from windlass.tune.errors import RecursiveDependencyError
from windlass.tune.space.primitives import grid_search
from windlass.tune.space.space import Space

__all__ = ["RecursiveDependencyError", "generate_variants", "grid_search"]


def generate_variants(
    unresolved_spec: Mapping[str, Any], constant_grid_search: bool = False, random_state: int | None = None
) -> Iterator[tuple[dict[tuple[str, ...], Any], dict[str, Any]]]:
    """Yield the sampled values by path, and the configuration, for every grid point of one sample.

    Args:
        unresolved_spec: a search space, at any depth.
        constant_grid_search: draw once and use the values for all points.
        random_state: a seed; by default a new one every time.
    """
    space = Space(unresolved_spec)
    seed = random.getrandbits(32) if random_state is None else random_state
    for index in range(space.grid_size):
        purpose = ("sample", 0) if constant_grid_search else ("trial", index)
        config, assigned = space.draw(seed, *purpose, grid_index=index)
        yield {tuple(name.split("/")): value for name, value in assigned.items()}, config
