"""Pure planner that decides what a launch will run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.plan.job import RunPaths, job_document
    from windlass.plan.page import plan_page
    from windlass.plan.pins import Pins
    from windlass.plan.placement import choose_site, split_place
    from windlass.plan.plan import PLAN_SCHEMA, Plan, TaskPlan
    from windlass.plan.planner import make_plan
    from windlass.plan.site import LOCAL, Site, SiteResources
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.plan.job": ("RunPaths", "job_document"),
            "windlass.plan.page": ("plan_page",),
            "windlass.plan.pins": ("Pins",),
            "windlass.plan.placement": ("choose_site", "split_place"),
            "windlass.plan.plan": ("PLAN_SCHEMA", "Plan", "TaskPlan"),
            "windlass.plan.planner": ("make_plan",),
            "windlass.plan.site": ("LOCAL", "SiteResources", "Site"),
        },
    )

__all__ = [
    "LOCAL",
    "PLAN_SCHEMA",
    "Pins",
    "Plan",
    "RunPaths",
    "Site",
    "SiteResources",
    "TaskPlan",
    "choose_site",
    "job_document",
    "make_plan",
    "plan_page",
    "split_place",
]
