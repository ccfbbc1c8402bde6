"""Settings of a view, and the conversion of Ray Tune's reporters to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.tune.errors import BadValueError

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter", "ViewSettings", "settings_of"]

Columns = Mapping[str, str] | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """Settings of a view.

    Attributes:
        metric_columns: metrics to show (name to heading); None shows iteration, time, the sweep's metrics
            and the user's.
        parameter_columns: parameters to show; None shows all drawn parameters.
        max_rows: maximum trials in the table; running trials come first, then the best finished.
        max_failures: maximum errors below the table.
        max_width: maximum characters of a heading or value; longer ones are shortened.
        interval_s: seconds between two updates of the table on a terminal.
        line_interval_s: seconds between two lines without a terminal.
        total: number of trials, if the searcher does not know it.
        sorts_by_metric: sort running trials by score, too.
        is_notebook: show the table in the output of a notebook cell.
        overwrites: whether a notebook's table replaces the previous one.
    """

    metric_columns: Mapping[str, str] | None = None
    parameter_columns: Mapping[str, str] | None = None
    max_rows: int = 20
    max_failures: int = 5
    max_width: int = 20
    interval_s: float = 0.5
    line_interval_s: float = 30.0
    total: int = 0
    metric: str = ""
    mode: str = ""
    max_inferred: int = 3
    sorts_by_metric: bool = False
    is_notebook: bool = False
    overwrites: bool = True


class ProgressReporter:
    """Base class for reporters, whose arguments become the settings of the view."""

    settings = ViewSettings()


class CLIReporter(ProgressReporter):
    """Reporter for terminals with the defaults of Ray Tune's; all arguments are keyword-only.

    `print_intermediate_tables` has no effect, because the table on a terminal is always live.
    """

    _is_notebook = False

    def __init__(
        self,
        *,
        metric_columns: Columns = None,
        parameter_columns: Columns = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
        overwrite: bool = True,
    ) -> None:
        if mode not in (None, "min", "max"):
            raise BadValueError(
                f"mode {mode!r} is not one of min, max", hint="pass mode='min' or mode='max'", code="invalid-value"
            )
        self._metrics = _as_names(metric_columns)
        self._parameters = _as_names(parameter_columns)
        self._print_intermediate_tables = print_intermediate_tables
        self._rest: dict[str, Any] = {
            "total": total_samples or 0,
            "max_rows": max_progress_rows,
            "max_failures": max_error_rows,
            "max_width": max_column_length,
            "interval_s": min(0.5, max_report_frequency),
            "line_interval_s": max_report_frequency,
            "max_inferred": infer_limit,
            "metric": metric or "",
            "mode": mode or "",
            "sorts_by_metric": sort_by_metric,
            "overwrites": overwrite,
        }

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show one more metric, optionally under a different heading.

        Raises:
            UsageError: it is already shown (`invalid-value`).
        """
        self._metrics = _add(self._metrics or {}, metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show one more parameter, optionally under a different heading.

        Raises:
            UsageError: it is already shown (`invalid-value`).
        """
        self._parameters = _add(self._parameters or {}, parameter, representation)

    @property
    def settings(self) -> ViewSettings:  # type: ignore[override]
        """Settings of the view."""
        return ViewSettings(
            metric_columns=self._metrics,
            parameter_columns=self._parameters or None,
            is_notebook=self._is_notebook,
            **self._rest,
        )


class JupyterNotebookReporter(CLIReporter):
    """Reporter for notebooks, like Ray Tune's: one table in the cell's output, redrawn in place."""

    _is_notebook = True


def settings_of(reporter: object | None) -> ViewSettings:
    """Return the view settings that a reporter stands for.

    Raises:
        UsageError: it is not a ProgressReporter, or it overrides `report`, which would not be called (`unsupported-setting`).
    """
    if reporter is None:
        return ViewSettings()
    own = [name for name in ("report", "should_report", "display") if getattr(type(reporter), name, None)]
    if not isinstance(reporter, ProgressReporter) or own:
        what = f"its own {own[0]}()" if own else "no settings of ours"
        raise BadValueError(
            f"progress_reporter={type(reporter).__name__} has {what}, which is not supported",
            hint="use CLIReporter(metric_columns=[...]), or a callback with on_trial_result for custom output",
            code="unsupported-setting",
        )
    return reporter.settings


def _as_names(columns: Columns) -> dict[str, str] | None:
    if columns is None:
        return None
    return dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}


def _add(columns: Mapping[str, str], name: str, heading: str | None) -> dict[str, str]:
    if name in columns:
        raise BadValueError(f"duplicate column {name!r}", hint="leave out the second one", code="invalid-value")
    return {**columns, name: heading or name}
