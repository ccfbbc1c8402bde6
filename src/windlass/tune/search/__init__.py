"""Searchers where Ray Tune has them; they live in `windlass.tune.searchers` and `windlass.tune.space`."""

from windlass.tune.searchers.basic_variant import BasicVariantGenerator
from windlass.tune.searchers.concurrency_limiter import ConcurrencyLimiter
from windlass.tune.searchers.plugin import Searcher
from windlass.tune.searchers.registry import create_searcher
from windlass.tune.searchers.repeater import Repeater
from windlass.tune.space import grid_search

__all__ = ["BasicVariantGenerator", "ConcurrencyLimiter", "Repeater", "Searcher", "create_searcher", "grid_search"]
