"""Export of a sweep as a CSV table, JSON or pictures."""

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
    from windlass.tune.sweep.handle import SweepHandle

__all__ = ["export"]

_TABLES = (".csv", ".json")
_PICTURES = (".html", ".png", ".svg")


def export(handle: SweepHandle, target: str, *, has_reports: bool = False, pictures: str = "") -> list[Path]:
    """Write a sweep to `target` in the format of its suffix or, without a suffix, in all formats to a folder.

    Args:
        target: a picture's file is named after the picture: `curves.png`.
        has_reports: write a row per report.
        pictures: format of the pictures in a folder: `html` (default), `png` or `svg`.

    Raises:
        UsageError: unknown suffix or picture, or an option without effect.
        NotFoundError: the file's folder does not exist.
    """
    path = Path(target)
    _check_options(path, has_reports=has_reports, pictures=pictures)
    if path.suffix in (*_TABLES, *_PICTURES) and not path.absolute().parent.is_dir():
        message = f"no folder {path.parent} for `{target}`"
        raise NotFoundError(message, hint=f"mkdir -p {path.parent}", code="file-not-found")
    if path.suffix == ".csv":
        return [_write_table(handle, path, has_reports=has_reports)]
    if path.suffix == ".json":
        return [_write_json(handle, path, has_reports=has_reports)]
    if path.suffix in _PICTURES:
        from windlass.tune.pictures.drawing import draw  # lazy: only for this format

        return [draw(handle.history, path.stem, path)]
    if path.suffix:
        hint = f"use a name that ends in {', '.join((*_TABLES, *_PICTURES))}, or a folder"
        raise UsageError(f"unknown suffix `{path.suffix}` in `{target}`", hint=hint, code="file-suffix")
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
        raise UsageError(message, hint="use it with .csv or .json; a folder gets both tables", code="file-suffix")
    if pictures and path.suffix:
        message = f"--pictures {pictures} has no effect on `{path}`"
        raise UsageError(message, hint=f"use it with a folder, or name the file curves.{pictures}", code="file-suffix")


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
    from windlass.cli.render.sweep import sweep_data, trial_data  # lazy: only for this format

    data = sweep_data(handle)
    if has_reports:
        data["trials"] = [
            {**trial_data(handle, trial), "reports": [report.metrics for report in trial.reports]}
            for trial in handle.history.trials.values()
        ]
    path.write_text(json.dumps({"schema": "windlass.sweep/1", **data}, indent=1) + "\n", encoding="utf-8")
    return path


def _write_pictures(handle: SweepHandle, folder: Path, form: str) -> list[Path]:
    """Write every picture for which the sweep has data; write none if matplotlib is missing."""
    from windlass.tune.pictures.drawing import KINDS, draw  # lazy: only for a folder

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
