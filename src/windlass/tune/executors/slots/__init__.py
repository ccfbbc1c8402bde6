"""Slots on a site: windlass runs whose task is a worker; they pull trials through files on the shared file system."""

from __future__ import annotations

from windlass.tune.executors.slots.executor import SlotsExecutor

__all__ = ["SlotsExecutor"]
