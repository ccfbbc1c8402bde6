"""Trials as windlass runs."""

from __future__ import annotations

from windlass.tune.executors.runs.blueprint import Blueprint, read_blueprint
from windlass.tune.executors.runs.executor import RunsExecutor
from windlass.tune.executors.runs.overrides import check_name, overrides_of

__all__ = ["Blueprint", "RunsExecutor", "check_name", "overrides_of", "read_blueprint"]
