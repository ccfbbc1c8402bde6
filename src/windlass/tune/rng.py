"""Reproducible randomness: every sample has its own generator, keyed by the sweep's seed and a purpose.

A draw therefore does not depend on other draws, their order or the process, and a sweep gives the same trials at any
concurrency, on any executor, and after any restart.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

__all__ = ["draw", "draw_int", "seeded"]


def draw_int(seed: int, *purpose: object) -> int:
    """Return 64 pseudo-random bits for a seed and a purpose. Takes about 2 us."""
    text = "\0".join((str(seed), *map(str, purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def draw(seed: int, *purpose: object) -> Random:
    """Return a new generator for a seed and a purpose. Takes about 10 us."""
    return Random(draw_int(seed, *purpose))


@contextmanager
def seeded(bits: int) -> Iterator[None]:
    """Seed the global generators of `random` and, if loaded, numpy; restore their state afterwards.

    A user's own function may draw from them, and the same bits give the same values.
    """
    numpy: Any = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    random.seed(bits)
    if numpy:
        numpy.random.seed(bits & 0xFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)
