"""A sweep as files: a table, everything as JSON, or pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.cli.screen import tell
from windlass.core.errors import NotFoundError, PreconditionError, UsageError, WindlassError

if TYPE_CHECKING:
    from windlass.tune.controller.journal.history import TrialHistory
    from windlass.tune.sweep import SweepHandle

__all__ = ["export"]

_TABLES = (".csv", ".json")
_PICTURES = (".html", ".png", ".svg")


def export(handle: SweepHandle, target: str, *, has_reports: bool = False, pictures: str = "") -> list[Path]:
    """Write a sweep to `target` by its suffix; without one it is a folder for table, JSON and pictures.

    Args:
        target: the file of a picture has the picture's name: `curves.png`.
        has_reports: a row per report.
        pictures: what those in a folder are: `html`, `png` or `svg`; empty: html.

    Raises:
        UsageError: the suffix is none of those, there is no such picture, or an option that has no effect there.
        NotFoundError: the folder of the file is not there.
    """
    path = Path(target)
    _check_options(path, has_reports=has_reports, pictures=pictures)
    if path.suffix in (*_TABLES, *_PICTURES) and not path.absolute().parent.is_dir():
        message = f"there is no folder {path.parent} for `{target}`"
        raise NotFoundError(message, hint=f"mkdir -p {path.parent}", code="file-missing")
    if path.suffix == ".csv":
        return [_write_table(handle, path, has_reports=has_reports)]
    if path.suffix == ".json":
        return [_write_json(handle, path, has_reports=has_reports)]
    if path.suffix in _PICTURES:
        from windlass.tune.pictures import draw  # lazy: only this form

        return [draw(handle.history, path.stem, path)]
    if path.suffix:
        hint = f"give a name that ends in {', '.join((*_TABLES, *_PICTURES))}, or a folder"
        raise UsageError(f"`{target}`: a sweep has no form `{path.suffix}`", hint=hint, code="file-suffix")
    path.mkdir(parents=True, exist_ok=True)
    return [
        _write_table(handle, path / "trials.csv", has_reports=False),
        _write_table(handle, path / "reports.csv", has_reports=True),
        _write_json(handle, path / "sweep.json", has_reports=True),
        *_write_pictures(handle, path, pictures or "html"),
    ]


def _check_options(path: Path, *, has_reports: bool, pictures: str) -> None:
    if has_reports and path.suffix not in _TABLES:
        message = f"--reports has no effect on `{path}`"
        raise UsageError(message, hint="it is for .csv and .json; a folder has both tables", code="file-suffix")
    if pictures and path.suffix:
        message = f"--pictures {pictures} has no effect on `{path}`"
        raise UsageError(message, hint=f"it is for a folder; or name the file curves.{pictures}", code="file-suffix")


def _write_table(handle: SweepHandle, path: Path, *, has_reports: bool) -> Path:
    rows = list(_report_rows(handle) if has_reports else _trial_rows(handle))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def _trial_rows(handle: SweepHandle) -> Iterator[dict[str, Any]]:
    for trial in handle.history.trials.values():
        yield {"trial": trial.id, "status": str(trial.status), **_values(trial), **(trial.last or {}), "why": trial.why}


def _report_rows(handle: SweepHandle) -> Iterator[dict[str, Any]]:
    for trial in handle.history.trials.values():
        for report in trial.reports:
            yield {"trial": trial.id, **_values(trial), **report.metrics}


def _values(trial: TrialHistory) -> dict[str, Any]:
    return {f"config/{name}": value for name, value in (trial.assigned or trial.config).items()}


def _write_json(handle: SweepHandle, path: Path, *, has_reports: bool) -> Path:
    from windlass.cli.render.sweep import sweep_data, trial_data  # lazy: only this form

    data = sweep_data(handle)
    if has_reports:
        data["trials"] = [
            {**trial_data(handle, trial), "reports": [report.metrics for report in trial.reports]}
            for trial in handle.history.trials.values()
        ]
    path.write_text(json.dumps({"schema": "windlass.sweep/1", **data}, indent=1) + "\n", encoding="utf-8")
    return path


def _write_pictures(handle: SweepHandle, folder: Path, form: str) -> list[Path]:
    """Every picture for which the sweep has something to draw; none where matplotlib is not installed."""
    from windlass.tune.pictures import KINDS, draw  # lazy: only a folder has pictures

    history, found = handle.history, []
    for kind in KINDS:
        try:
            found.append(draw(history, kind, folder / f"{kind}.{form}"))
        except PreconditionError as error:
            tell(f"  no pictures: {error.message}; {error.hint}")
            break
        except WindlassError as error:
            tell(f"  no picture `{kind}`: {error.message}")
    return found
