"""Reports as rows in Ray Tune's form, with the user's metrics and additional fields.

Workers send only metrics, iteration and time; all other fields are derived from the journal, at no cost to the trials.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from windlass.tune.controller.journal.history import AttemptHistory, DecisionMade, History, TrialHistory, TrialReport
from windlass.tune.results.columns import NestedMetrics, flatten, is_nan, tag_of
from windlass.tune.trial import SavedState

__all__ = ["ResultRow", "best_report", "exploits_of", "last_result", "make_result", "reports_of", "rows_of", "tag_at"]

_FIRST = ("training_iteration", "time_total_s", "done", "checkpoint_dir_name", "timestamp")
_NO_ATTEMPT = AttemptHistory(number=0, chosen_at=0.0)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Report, with the other data needed for its row.

    Attributes:
        time_before_s: `time_total_s` of the previous report, or of the checkpoint that its attempt restored.
        time_restored_s: `time_total_s` of the checkpoint that its attempt restored.
    """

    report: TrialReport
    attempt: AttemptHistory
    time_before_s: float
    time_restored_s: float


def make_result(trial: TrialHistory, row: ResultRow) -> NestedMetrics:
    """Return a report with all fields of Ray Tune's results.

    They include `config`, nested, as it was for the trial at that time.
    """
    metrics, attempt = row.report.metrics, row.attempt
    total = float(metrics.get("time_total_s") or 0.0)
    config, tag = _at_attempt(trial, attempt)
    restored = attempt.restore.iteration if attempt.restore else 0
    result = NestedMetrics((name, value) for name, value in metrics.items() if name not in _FIRST)
    filled = {
        "timestamp": metrics.get("timestamp", int(row.report.at)),
        "checkpoint_dir_name": row.report.saved.rstrip("/").rsplit("/", 1)[-1] or None,
        "done": bool(metrics.get("done", False)),
        "training_iteration": row.report.iteration,
        "trial_id": trial.id,
        "date": _date(int(row.report.at)),
        "time_this_iter_s": total - row.time_before_s,
        "time_total_s": total,
        "pid": attempt.pid,
        "hostname": attempt.host,
        "node_ip": attempt.host,
        "config": config,
        "time_since_restore": total - row.time_restored_s,
        "iterations_since_restore": row.report.iteration - restored,
        "experiment_tag": tag or tag_of(trial.number, _first_assigned(trial)),
    }
    for name, value in filled.items():
        result.setdefault(name, value)
    return result


@lru_cache(maxsize=64)
def _date(second: int) -> str:
    return time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))


def exploits_of(trial: TrialHistory) -> list[DecisionMade]:
    """Return the decisions that gave a trial another configuration, oldest first."""
    return [made for made in trial.decisions if made.decision == "exploit"]


def _at_attempt(trial: TrialHistory, attempt: AttemptHistory) -> tuple[dict[str, Any], str]:
    """Return the configuration and tag of an attempt as they were before later exploits."""
    later = [made for made in exploits_of(trial) if made.at > attempt.chosen_at] if trial.tag else []
    return (later[0].facts["old_config"], later[0].facts["old_tag"]) if later else (trial.config, trial.tag)


def _first_assigned(trial: TrialHistory) -> dict[str, Any]:
    made = exploits_of(trial) if trial.tag else []
    return dict(made[0].facts["old_assigned"]) if made else trial.assigned


def tag_at(trial: TrialHistory, tag: str | None = None) -> str:
    """Return a trial's tag: `3_lr=0.1000`, or `3@perturbed[...]` after an exploit.

    `tag` may be an earlier one.
    """
    return (trial.tag if tag is None else tag) or tag_of(trial.number, _first_assigned(trial))


def reports_of(trial: TrialHistory) -> list[TrialReport]:
    """Return the reports from a trial since it was last restarted."""
    restarts = [made.at for made in trial.decisions if made.decision == "restart"]
    return [report for report in trial.reports if report.at >= restarts[-1]] if restarts else trial.reports


def _rows(trial: TrialHistory, history: History) -> Iterator[ResultRow]:
    attempts = {attempt.number: attempt for attempt in trial.attempts}
    restored_s: dict[int, float] = {}
    before: TrialReport | None = None
    for report in reports_of(trial):
        attempt = attempts.get(report.attempt, _NO_ATTEMPT)
        if report.attempt not in restored_s:
            restored_s[report.attempt] = _time_at(history, attempt.restore)
            before = None
        time_before_s = before.metrics.get("time_total_s") if before else restored_s[report.attempt]
        yield ResultRow(report, attempt, time_before_s or 0.0, restored_s[report.attempt])
        before = report


def _time_at(history: History, saved: SavedState | None) -> float:
    """Return `time_total_s` at a checkpoint."""
    source = history.trials.get(saved.trial) if saved else None
    for report in reversed(source.reports if source else ()):
        if saved and report.iteration == saved.iteration:
            return float(report.metrics.get("time_total_s") or 0.0)
    return 0.0


def rows_of(trial: TrialHistory, history: History) -> Iterator[dict[str, Any]]:
    """Yield every report from a trial as a flat row, oldest first, with its configuration as `config/...`."""
    return (flatten(make_result(trial, row)) for row in _rows(trial, history))


def last_result(trial: TrialHistory, history: History, report: TrialReport | None = None) -> NestedMetrics:
    """Return the newest report from a trial, or the given one, with all fields; empty if it has none."""
    reports = reports_of(trial)
    wanted = report or (reports[-1] if reports else None)
    if wanted is None:
        return NestedMetrics()
    return next(make_result(trial, row) for row in _rows(trial, history) if row.report is wanted)


def best_report(trial: TrialHistory, metric: str, mode: str) -> TrialReport | None:
    """Return the first report that has a trial's highest or lowest value of a metric. Ignores NaN."""
    scored = [report for report in reports_of(trial) if _is_comparable(report.metrics.get(metric))]
    pick = max if mode == "max" else min
    return pick(scored, key=lambda report: report.metrics[metric]) if scored else None


def _is_comparable(value: object) -> bool:
    return isinstance(value, int | float) and not is_nan(value)
