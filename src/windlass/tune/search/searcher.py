"""What a plug-in subclasses, where Ray Tune has it."""

from windlass.tune.searchers.plugin import Searcher

__all__ = ["Searcher"]
