"""What a recipe will cost on so many processes, without them."""

from __future__ import annotations

from windlass.train.plan.machine import GPUS, Gpu, MachineSpec
from windlass.train.plan.plan import TrainPlan, plan_recipe

__all__ = ["GPUS", "Gpu", "MachineSpec", "TrainPlan", "plan_recipe"]
