"""OptunaSearch, where Ray Tune has it."""

from windlass.tune.searchers.optuna.optuna_search import OptunaSearch

__all__ = ["OptunaSearch"]
