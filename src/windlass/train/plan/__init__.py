"""What a recipe will cost on so many processes, without them."""

from __future__ import annotations

from windlass.train.plan.machine import GPUS, Gpu, Machine
from windlass.train.plan.plan import Plan, plan_recipe

__all__ = ["GPUS", "Gpu", "Machine", "Plan", "plan_recipe"]
