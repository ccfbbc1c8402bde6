"""Loggers, under Ray Tune's import path.

Your own `LoggerCallback` runs in the head; those for CSV, JSON, TensorBoard and so on are followers, separate
processes.
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
