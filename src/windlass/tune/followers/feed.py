"""Journal records as what happened to trials: the part that all targets share."""

from __future__ import annotations

from windlass.record.frames import Record
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.history import AttemptHistory, History, TrialHistory, TrialReport
from windlass.tune.folder import SweepFolder
from windlass.tune.followers.target import FollowedSweep, Target
from windlass.tune.results.rows import ResultRow, make_result

__all__ = ["Feed"]


class Feed:
    """Folds records, and tells a target of those that are new to it.

    Attributes:
        history: the sweep so far, without its reports.
    """

    def __init__(self, folder: SweepFolder, target: Target) -> None:
        self.history = History(keeps_reports=False)
        self._folder = folder
        self._target = target
        self._is_open = False
        self._num_reports: dict[str, int] = {}
        self._newest_s: dict[str, tuple[int, float]] = {}
        self._restored_s: dict[str, float] = {}
        self._saved_s: dict[tuple[str, int], float] = {}

    def take(self, record: Record, *, is_new: bool) -> None:
        """Add a record; one that is not new was told before and only counts for what follows."""
        touched = self._touched(record)
        before = {trial.id: (trial.status.is_over, trial.tag) for trial in touched}
        self.history.add(record)
        if not self._is_open and self.history.name:
            name = str(self.history.trainable.get("type", ""))
            self._target.open(FollowedSweep(name=self.history.name, folder=self._folder, trainable=name))
            self._is_open = True
        trial = self.history.trials.get(str(record.data.get("trial")))
        if trial is not None:
            self._tell(record, trial, is_new=is_new)
        for other in touched if is_new else ():
            was_over, tag = before[other.id]
            if other.tag != tag:
                self._target.configured(other)
            if other.status.is_over and not was_over:
                self._target.ended(other, is_failed=other.status == "ERROR")

    def _touched(self, record: Record) -> list[TrialHistory]:
        names = [record.data.get("trial"), *(act.get("trial") for act in record.data.get("acts") or ())]
        return [self.history.trials[name] for name in dict.fromkeys(names) if name in self.history.trials]

    def _tell(self, record: Record, trial: TrialHistory, *, is_new: bool) -> None:
        if record.kind == records.TRIAL_CHOSEN:
            restore = trial.attempts[-1].restore
            self._restored_s[trial.id] = self._saved_s.get((restore.trial, restore.iteration), 0.0) if restore else 0.0
        elif record.kind == records.TRIAL_STARTED and is_new:
            self._target.started(trial)
        elif record.kind == records.TRIAL_REPORTED:
            self._report(record, trial, is_new=is_new)
        elif record.kind == records.TRIAL_SAVED:
            last = trial.last or {}
            self._note_saved(trial, record.data["iteration"], last.get("time_total_s") or 0.0)
            if is_new:
                self._target.saved(trial, record.data["path"])

    def _report(self, record: Record, trial: TrialHistory, *, is_new: bool) -> None:
        report = TrialReport(record.at, record.data["attempt"], record.data["metrics"], record.data.get("saved", ""))
        number = self._num_reports[trial.id] = self._num_reports.get(trial.id, 0) + 1
        total = float(report.metrics.get("time_total_s") or 0.0)
        restored_s = self._restored_s.get(trial.id, 0.0)
        attempt, before_s = self._newest_s.get(trial.id, (0, 0.0))
        before_s = before_s if attempt == report.attempt else restored_s
        self._newest_s[trial.id] = (report.attempt, total)
        if report.saved:
            self._note_saved(trial, report.iteration, total)
        if not is_new:
            return
        started = next((one for one in reversed(trial.attempts) if one.number == report.attempt), _NO_ATTEMPT)
        self._target.reported(
            trial, make_result(trial, ResultRow(report, started, before_s, restored_s)), number, record.at
        )
        if report.saved:
            self._target.saved(trial, report.saved)

    def _note_saved(self, trial: TrialHistory, iteration: int, total_s: float) -> None:
        self._saved_s[trial.id, iteration] = total_s


_NO_ATTEMPT = AttemptHistory(number=0, chosen_at=0.0)
