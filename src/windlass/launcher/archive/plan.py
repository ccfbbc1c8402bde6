"""Plan of a run as it applies on this machine, with imported data read from the import."""

from __future__ import annotations

from dataclasses import replace

from windlass.plan.plan import Plan
from windlass.runs.archive.origin import archived_data
from windlass.runs.store import RunFolder

__all__ = ["plan_here"]


def plan_here(run: RunFolder) -> Plan:
    """Return a run's plan, with only the paths of imported data changed, so that the hash stays equal.

    Raises:
        NotFoundError, PreconditionError: see `Plan.from_data` and `RunFolder.plan`.
    """
    plan, data = Plan.from_data(run.plan()), archived_data(run)
    pins = {name: replace(pin, source=f"file:{data[name]}") for name, pin in plan.pins.data.items() if name in data}
    return replace(plan, pins=replace(plan.pins, data={**plan.pins.data, **pins})) if pins else plan
