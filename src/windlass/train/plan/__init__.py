"""Cost of a recipe on a given number of processes, computed without them."""

from __future__ import annotations

from windlass.train.plan.machine import GPUS, Gpu, MachineSpec
from windlass.train.plan.plan import TrainPlan, plan_recipe

__all__ = ["GPUS", "Gpu", "MachineSpec", "TrainPlan", "plan_recipe"]
