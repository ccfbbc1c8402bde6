"""CSV, JSON Lines and TensorBoard files for each trial, with the names, format and tags of Ray Tune's. Needs no library."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import ClassVar

from windlass.trackers.tensorboard import header, hparams_end, hparams_start, scalars
from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.followers.target import FileTarget, plain_values, trial_path
from windlass.tune.results.columns import NestedMetrics, flatten, is_nan

__all__ = ["CSVTarget", "JSONTarget", "TensorBoardTarget"]


class CSVTarget(FileTarget):
    """Target that writes `trials/<id>/progress.csv`: a row for each report, with the columns of the first one."""

    name = "csv"
    patterns: ClassVar = ("trials/*/progress.csv",)

    def __init__(self) -> None:
        super().__init__()
        self._columns: dict[str, tuple[str, ...]] = {}
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Add a row.

        Metrics that the first report lacked are left out, and missing ones are left empty.
        """
        path = trial_path(trial, "progress.csv")
        row = flatten({name: value for name, value in result.items() if name != "config"})
        columns = self._columns.get(trial.id)
        if columns is None:
            head = next(csv.reader([self.read_head(path).decode()]), [])
            columns = tuple(head or row)
            columns = self._columns[trial.id] = self._known.setdefault(columns, columns)  # trials share their columns
            if not head:
                self.pieces.append(path, _line(columns))
        self.pieces.append(path, _line([row.get(name, "") for name in columns]))


def _line(cells: Iterable[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()


class JSONTarget(FileTarget):
    """Target that writes `trials/<id>/result.json`, with a JSON object for each report, and `params.json`."""

    name = "json"
    patterns: ClassVar = ("trials/*/result.json", "trials/*/params.json")

    def started(self, trial: TrialHistory) -> None:
        """Write the configuration."""
        self.configured(trial)

    def configured(self, trial: TrialHistory) -> None:
        """Write the configuration."""
        content = json.dumps(trial.config, indent=2, sort_keys=True)
        self.pieces.replace(trial_path(trial, "params.json"), content.encode())

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Add a line for the report."""
        self.pieces.append(trial_path(trial, "result.json"), json.dumps(result).encode() + b"\n")


_NOT_SHOWN = ("config", "pid", "timestamp", "time_total_s", "training_iteration")
_TAG = "ray/tune/"


class TensorBoardTarget(FileTarget):
    """Target that writes `trials/<id>/events.out.tfevents.*`: `tensorboard --logdir <sweep>/trials` shows the sweep.

    Numbers become scalars at the trial's iteration (or its `timesteps_total`); drawn values become the HPARAMS page.
    Lists and NaN are omitted.
    """

    name = "tensorboard"
    patterns: ClassVar = ("trials/*/events.out.tfevents.*.windlass",)

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Add an event with all the numbers in the report."""
        path = _path(trial)
        if not self.begun(path):
            self.pieces.append(path, header(trial.suggested_at))
        step = int(result.get("timesteps_total") or result["training_iteration"])
        shown = plain_values({name: value for name, value in result.items() if name not in _NOT_SHOWN})
        values = {_TAG + name: value for name, value in shown.items() if not is_nan(value)}
        self.pieces.append(path, scalars(at, step, values))

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Add the trial's parameters and outcome."""
        if trial.last is None:
            return
        at = trial.ended_at or trial.suggested_at
        tags = [_TAG + name for name in plain_values(trial.last) if name not in _NOT_SHOWN]
        values = trial.assigned or flatten(trial.config)
        path = _path(trial)
        self.pieces.append(path, hparams_start(at, values, tags, trial.id))
        self.pieces.append(path, hparams_end(at, is_failed=is_failed))


def _path(trial: TrialHistory) -> str:
    return trial_path(trial, f"events.out.tfevents.{int(trial.suggested_at)}.windlass")
