"""A user's own drawing function, called so that the same call draws the same value again."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

__all__ = ["plain", "seeded"]


@contextmanager
def seeded(rng: Random) -> Iterator[None]:
    """Seed the global generators of `random` and of numpy, if it is loaded, and leave them as they were found."""
    seed = rng.getrandbits(64)
    before = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    numpy_before = None if numpy is None else numpy.random.get_state()
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(before)
        if numpy is not None:
            numpy.random.set_state(numpy_before)


def plain(value: Any) -> Any:
    """A number of numpy as one of Python, which JSON has; anything else as it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value
