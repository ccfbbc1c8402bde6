"""Followers: processes that read a sweep's journal and export it to other formats and services."""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names

if TYPE_CHECKING:
    from windlass.tune.followers.following import SweepFollower
    from windlass.tune.followers.loggers import (
        CSVLoggerCallback,
        FollowerCallback,
        JsonLoggerCallback,
        MLflowLoggerCallback,
        TBXLoggerCallback,
        WandbLoggerCallback,
        split_callbacks,
    )
    from windlass.tune.followers.processes import FollowerProcesses
    from windlass.tune.followers.registry import TARGETS, make_target
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.followers.following": ("SweepFollower",),
            "windlass.tune.followers.loggers": (
                "CSVLoggerCallback",
                "FollowerCallback",
                "JsonLoggerCallback",
                "MLflowLoggerCallback",
                "TBXLoggerCallback",
                "WandbLoggerCallback",
                "split_callbacks",
            ),
            "windlass.tune.followers.processes": ("FollowerProcesses",),
            "windlass.tune.followers.registry": ("TARGETS", "make_target"),
        },
    )

__all__ = [
    "TARGETS",
    "CSVLoggerCallback",
    "FollowerCallback",
    "FollowerProcesses",
    "JsonLoggerCallback",
    "MLflowLoggerCallback",
    "SweepFollower",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
    "make_target",
    "split_callbacks",
]
