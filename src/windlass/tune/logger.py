"""Loggers, at the place where scripts for Ray Tune import them from.

A `LoggerCallback` of your own runs in the head; those for CSV, JSON, TensorBoard and so on are followers, processes of
their own.
"""

from __future__ import annotations

from windlass.tune.callback import LoggerCallback
from windlass.tune.followers.loggers import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "MLflowLoggerCallback",
    "TBXLoggerCallback",
    "WandbLoggerCallback",
]
