"""A searcher of Ray Tune's that windlass does not have; asking for it says what to use."""

from windlass.tune.searchers.registry import elsewhere

__all__: list[str] = []

__getattr__ = elsewhere("ax")
