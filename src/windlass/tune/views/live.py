"""Live view of a running sweep: a table on a terminal, a cell in a notebook, lines elsewhere.

It takes every record at the cost of a few counters, and draws at most a few times a second.
"""

from __future__ import annotations

import html
import importlib.util
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from windlass.core.clock import Clock, SystemClock
from windlass.core.phrases import count
from windlass.tune.controller.journal import records
from windlass.tune.results.why import format_value
from windlass.tune.views.layout import Table, best_line, count_line, failure_lines, fit, trial_table, wait_lines
from windlass.tune.views.progress import SweepProgress
from windlass.tune.views.reporters import ViewSettings

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["LiveView", "html_page", "plain_table"]

_RATE_WINDOW_S = 10.0
_FAST_S = 0.25


class _Screen(Protocol):
    """Output on which a view draws."""

    interval_s: float
    first_after_s: float

    def draw(self, progress: SweepProgress, settings: ViewSettings, rate: float | None, *, is_last: bool) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


class LiveView:
    """View of a sweep.

    Pass it records with `take`, call `tick` often, and `close` it at the end.

    Args:
        verbosity: 0 shows nothing; 1 the table, or a line at intervals; 2 also a line for each ended trial; 3 also a
            line for each report.
        stream: stream to write to; a terminal gets the live table.
        progress: counters that are updated elsewhere.
    """

    def __init__(
        self,
        *,
        verbosity: int = 1,
        settings: ViewSettings | None = None,
        stream: TextIO | None = None,
        clock: Clock | None = None,
        progress: SweepProgress | None = None,
    ) -> None:
        self.settings = settings or ViewSettings()
        self.progress = progress or SweepProgress(metric=self.settings.metric, mode=self.settings.mode)
        self.progress.total = self.progress.total or self.settings.total
        self._verbosity = verbosity
        self._clock = clock or SystemClock()
        self._stream = stream or sys.stderr
        self._screen: _Screen | None = None
        self._drawn_at = float("-inf")
        self._num_drawn = -1
        self._samples: deque[tuple[float, int]] = deque(maxlen=64)

    def take(self, kind: str, data: Mapping[str, Any], at: float) -> None:
        """Add one record from the journal. Takes about 2 us."""
        self.progress.take(kind, data, at)
        if self._verbosity >= 2:
            self._narrate(kind, data)

    def tick(self) -> None:
        """Draw if an update is due and something has changed."""
        if self._verbosity <= 0:
            return
        now = self._clock.monotonic()
        if self._screen is None:
            self._screen = self._make_screen()
            self._drawn_at = now - self._screen.interval_s + self._screen.first_after_s
        screen = self._screen
        if now - self._drawn_at < screen.interval_s or self._num_drawn == self._num_events():
            return
        self._draw(now, is_last=False)

    def note(self, text: str) -> None:
        """Show a string above the table, such as the stack of a trial that hangs."""
        if self._verbosity > 0:
            self._screen = self._screen or self._make_screen()
            self._screen.say(text)

    def close(self) -> None:
        """Draw for the last time. Idempotent."""
        if self._verbosity > 0:
            self._screen = self._screen or self._make_screen()
            self._draw(self._clock.monotonic(), is_last=True)
            self._screen.close()
        self._verbosity = 0

    @property
    def tells_reports(self) -> bool:
        """Return whether the view prints every report and therefore needs all of them."""
        return self._verbosity >= 3

    def _num_events(self) -> int:
        progress = self.progress
        return progress.num_reports + progress.num_trials + progress.counts_changed

    def _draw(self, now: float, *, is_last: bool) -> None:
        assert self._screen is not None
        self._screen.draw(self.progress, self.settings, self._rate(now), is_last=is_last)
        self._drawn_at, self._num_drawn = self._clock.monotonic(), self._num_events()

    def _rate(self, now: float) -> float | None:
        """Return the reports per second over the last ten seconds, or None before there are two samples."""
        self._samples.append((now, self.progress.num_reports))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        (then, before), passed = self._samples[0], now - self._samples[0][0]
        return (self.progress.num_reports - before) / passed if passed > 0 and then < now else None

    def _make_screen(self) -> _Screen:
        if self.settings.is_notebook:
            return _Notebook(self.settings)
        if not self._stream.isatty():
            return _Lines(self._stream, self.settings)
        if importlib.util.find_spec("rich") is not None:
            return _Terminal(self._stream, self.settings)
        lines = _Lines(self._stream, self.settings)
        lines.say("no live table without rich: pip install 'windlass[tune]'")
        return lines

    def _narrate(self, kind: str, data: Mapping[str, Any]) -> None:
        line = ""
        if kind == records.TRIAL_ENDED and data.get("status") in ("TERMINATED", "ERROR"):
            line = f"trial {data['trial']} {'done' if data['status'] == 'TERMINATED' else 'failed'}"
            line += f": {data['why']}" if data.get("why") else ""
        elif kind == records.TRIAL_REPORTED and (self._verbosity >= 3 or data.get("decision")):
            shown = {name: value for name, value in data["metrics"].items() if name not in ("time_total_s", "done")}
            values = "  ".join(f"{name}={format_value(value)}" for name, value in shown.items())
            line = f"trial {data['trial']}  {values}" if self._verbosity >= 3 else f"trial {data['trial']}"
            line += f"  {data['decision']}: {data.get('why', '')}" if data.get("decision") else ""
        if line:
            self._screen = self._screen or self._make_screen()
            self._screen.say(line)


class _Terminal:
    """Live table on a terminal, with other output above it."""

    first_after_s = 0.0

    def __init__(self, stream: TextIO, settings: ViewSettings) -> None:
        from rich.console import Console  # lazy: only needed for terminals
        from rich.live import Live  # lazy: as above

        self.interval_s = max(_FAST_S, settings.interval_s)
        self._console = Console(file=stream)
        self._live: Live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def draw(self, progress: SweepProgress, settings: ViewSettings, rate: float | None, *, is_last: bool) -> None:
        from rich.console import Group  # lazy: as above
        from rich.text import Text  # lazy: as above

        lines = [Text(f"{progress.name}  {count_line(progress, reports_per_s=rate)}", style="bold")]
        best = best_line(progress, settings)
        lines += [Text(best, style="green")] if best else []
        lines += [Text(line, style="yellow") for line in wait_lines(progress)]
        errors = [Text(line, style="red") for line in failure_lines(progress, settings.max_failures)]
        # A table taller than the screen cannot be redrawn in place.
        room = max(3, self._console.size.height - len(lines) - len(errors) - 6)
        table = trial_table(
            progress, replace(settings, max_rows=settings.max_rows if is_last else min(room, settings.max_rows))
        )
        table = fit(table, self._console.size.width, keeps=progress.metric)
        self._live.update(Group(*lines, _rich_table(table), *errors), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


def _rich_table(table: Table) -> Any:
    from rich import box  # lazy: as above
    from rich.table import Table as RichTable  # lazy: as above

    found = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, caption=_hidden(table), caption_justify="left")
    for heading, is_right in zip(table.headings, table.numeric, strict=True):
        found.add_column(heading, justify="right" if is_right else "left", no_wrap=True, overflow="ellipsis")
    for row in table.rows:
        found.add_row(*row, style="dim" if row[1] in ("done", "waiting") else None)
    return found


def _hidden(table: Table) -> str | None:
    return f"and {count(table.num_hidden, 'more trial')}" if table.num_hidden > 0 else None


class _Lines:
    """Lines written to a log at intervals, and the table at the end.

    For a short sweep, only the table is written.
    """

    first_after_s = 2.0

    def __init__(self, stream: TextIO, settings: ViewSettings) -> None:
        self.interval_s = settings.line_interval_s
        self._stream = stream
        self._num_failures = 0

    def draw(self, progress: SweepProgress, settings: ViewSettings, rate: float | None, *, is_last: bool) -> None:
        self.say(count_line(progress, reports_per_s=rate))
        for line in [best_line(progress, settings), *wait_lines(progress)]:
            if line:
                self.say(f"  {line}")
        if progress.num_failures > self._num_failures:
            for line in failure_lines(progress, min(settings.max_failures, progress.num_failures - self._num_failures)):
                self.say(f"  {line}")
            self._num_failures = progress.num_failures
        if is_last and progress.num_trials:
            self.say(plain_table(trial_table(progress, settings)))

    def say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        pass


def plain_table(table: Table) -> str:
    """Format a table as text with padded columns."""
    columns = list(zip(table.headings, *table.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in [table.headings, *table.rows]:
        cells = zip(row, widths, table.numeric, strict=True)
        lines.append(
            "  ".join(f"{cell:>{width}}" if right else f"{cell:<{width}}" for cell, width, right in cells).rstrip()
        )
    return "\n".join([*lines, *filter(None, [_hidden(table)])])


class _Notebook:
    """Table in the cell of a notebook, redrawn in place."""

    first_after_s = 0.0

    def __init__(self, settings: ViewSettings) -> None:
        import IPython.display  # lazy: installed only in notebooks

        self.interval_s = max(1.0, settings.interval_s)
        self._display = IPython.display
        self._handle: Any = None
        self._overwrites = settings.overwrites

    def draw(self, progress: SweepProgress, settings: ViewSettings, rate: float | None, *, is_last: bool) -> None:
        page = self._display.HTML(html_page(progress, settings, rate))
        if self._handle is None or not self._overwrites:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)

    def say(self, line: str) -> None:
        sys.stdout.write(line + "\n")

    def close(self) -> None:
        pass


def html_page(progress: SweepProgress, settings: ViewSettings, rate: float | None = None) -> str:
    """Return the view as HTML, with every string from the sweep escaped."""
    table = trial_table(progress, settings)
    lines = [count_line(progress, reports_per_s=rate), best_line(progress, settings), *wait_lines(progress)]
    lines += failure_lines(progress, settings.max_failures)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.headings)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    text = "<br>".join(html.escape(line) for line in lines if line)
    return f"<div><p>{text}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
