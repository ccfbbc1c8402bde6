"""TuneBOHB, where Ray Tune has it."""

from windlass.tune.searchers.optuna.tune_bohb import TuneBOHB

__all__ = ["TuneBOHB"]
