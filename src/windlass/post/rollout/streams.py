"""Random numbers that are counted and not drawn: a function of the run's seed, group, member and position.

Source: Steele et al. 2014, "Fast splittable pseudorandom number generators" (SplitMix64), with the position as counter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.post.rollout.types import SampleId

__all__ = ["FIRST", "GOLDEN", "SECOND", "stream_key", "uniform"]

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1


def stream_key(seed: int, sample: SampleId) -> int:
    """Return the key of a sample's random numbers, a signed 64-bit integer; independent of its attempt."""
    state = 0
    for value in (seed, sample.group, sample.member):
        state = _mix((state + GOLDEN) ^ (value & _MASK))
    return state - 2**64 if state >= 2**63 else state


def uniform(key: int, position: int) -> float:
    """Return a number in [0, 1) from a key and a position; `sampling.uniforms` returns the same for tensors.

    52 bits, so that its product with a sum of probabilities is below the sum.
    """
    return (_mix(key + (position + 1) * GOLDEN) >> 12) * 2.0**-52


def _mix(value: int) -> int:
    """Return SplitMix64's output for a state, as an unsigned 64-bit integer."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * FIRST) & _MASK
    value = ((value ^ (value >> 27)) * SECOND) & _MASK
    return value ^ (value >> 31)
