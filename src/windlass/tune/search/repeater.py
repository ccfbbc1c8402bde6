"""The repeater, where Ray Tune has it."""

from windlass.tune.searchers.repeater import TRIAL_INDEX, Repeater

__all__ = ["TRIAL_INDEX", "Repeater"]
