"""Executor that runs trials as windlass runs."""

from __future__ import annotations

from windlass.tune.executors.runs.executor import RunsExecutor
from windlass.tune.executors.runs.trial_template import TrialTemplate, check_name, overrides_of, read_trial_template

__all__ = ["RunsExecutor", "TrialTemplate", "check_name", "overrides_of", "read_trial_template"]
