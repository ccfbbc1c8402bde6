"""Executor of many small trials at a site: slots are runs whose workers get trials from shared files."""

from __future__ import annotations

from windlass.tune.executors.slots.executor import SlotsExecutor

__all__ = ["SlotsExecutor"]
