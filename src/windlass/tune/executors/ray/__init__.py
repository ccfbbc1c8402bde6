"""Executor on a Ray cluster, with actors and placement groups; does not use Ray Tune."""

from windlass.tune.executors.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
