"""CSV and JSON Lines files for each trial, with the names and the format of Ray Tune's."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import ClassVar

from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.followers.target import FileTarget, trial_path
from windlass.tune.results.columns import NestedMetrics, flatten

__all__ = ["CSVTarget", "JSONTarget"]


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
