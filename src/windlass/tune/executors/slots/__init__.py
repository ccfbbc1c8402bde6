"""Executor of many small trials at a site: its slots are runs whose workers pull trials through shared files."""

from __future__ import annotations

from windlass.tune.executors.slots.executor import SlotsExecutor

__all__ = ["SlotsExecutor"]
