"""Trials on a Ray cluster, by Ray's actors and placement groups; nothing of Ray Tune is used."""

from windlass.tune.executors.ray.executor import RayExecutor

__all__ = ["RayExecutor"]
