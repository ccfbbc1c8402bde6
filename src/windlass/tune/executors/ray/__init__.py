"""Executor on a Ray cluster that uses actors and placement groups, but not Ray Tune."""

from windlass.tune.executors.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
