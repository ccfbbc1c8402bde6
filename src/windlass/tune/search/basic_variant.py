"""Random and grid search, where Ray Tune has it."""

from windlass.tune.searchers.basic_variant import BasicVariantGenerator

__all__ = ["BasicVariantGenerator"]
