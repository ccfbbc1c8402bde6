"""The pure planner: what will run, decided before anything does."""

from __future__ import annotations

from windlass.plan.job import Places, job_document
from windlass.plan.page import page
from windlass.plan.pins import Pins
from windlass.plan.plan import PLAN_SCHEMA, Plan, TaskPlan
from windlass.plan.planner import make_plan
from windlass.plan.site import LOCAL, Machine, Site

__all__ = [
    "LOCAL",
    "PLAN_SCHEMA",
    "Machine",
    "Pins",
    "Places",
    "Plan",
    "Site",
    "TaskPlan",
    "job_document",
    "make_plan",
    "page",
]
