"""The limiter, where Ray Tune has it."""

from windlass.tune.searchers.limiting import ConcurrencyLimiter

__all__ = ["ConcurrencyLimiter"]
