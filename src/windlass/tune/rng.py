"""Randomness as data: every draw is made by a generator of its own, keyed by the sweep's seed and the purpose.

So a draw does not depend on what else was drawn before, by whom, in what order or in which process: the same sweep
gives the same trials at any concurrency, on any executor, and after any restart.
"""

from __future__ import annotations

import hashlib
from random import Random

__all__ = ["draw", "draw_int"]


def draw_int(seed: int, *purpose: object) -> int:
    """A number of 64 bits, as good as random, that belongs to the seed and the purpose. Costs about 2 us."""
    text = "\0".join((str(seed), *map(str, purpose)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def draw(seed: int, *purpose: object) -> Random:
    """A fresh generator that belongs to the seed and the purpose. Costs about 10 us."""
    return Random(draw_int(seed, *purpose))
