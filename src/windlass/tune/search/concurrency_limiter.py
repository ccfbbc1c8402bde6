"""The limiter, where Ray Tune has it."""

from windlass.tune.searchers.concurrency_limiter import ConcurrencyLimiter

__all__ = ["ConcurrencyLimiter"]
