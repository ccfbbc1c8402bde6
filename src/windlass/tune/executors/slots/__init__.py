"""Executor for many small trials at a site, whose slots are runs with workers that get trials from shared files."""

from __future__ import annotations

from windlass.tune.executors.slots.executor import SlotsExecutor

__all__ = ["SlotsExecutor"]
