from __future__ import annotations

import io
import math
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.tune.results.journals import Journal, asha_journal, random_journal
from windlass.core.clock import FakeClock
from windlass.core.errors import NotFoundError, UsageError
from windlass.core.files import take_lock, write_json
from windlass.tune.folder import SweepFolder
from windlass.tune.trial import Trial, TrialStatus
from windlass.tune.views import live as live_module
from windlass.tune.views.head import HeadView
from windlass.tune.views.live import LiveView
from windlass.tune.views.reporters import CLIReporter, JupyterNotebookReporter, ViewSettings, settings_of
from windlass.tune.views.watching import watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(journal: Journal, *, verbosity: int, step_s: float = 1.0) -> list[str]:
    stream, clock = io.StringIO(), FakeClock()
    view = LiveView(verbosity=verbosity, stream=stream, clock=clock)
    for record in journal.records:
        view.take(record.kind, record.data, record.at)
        clock.advance(step_s)
        view.tick()
    view.close()
    view.close()
    return stream.getvalue().splitlines()


def test_a_log_gets_a_line_now_and_then_and_the_table_at_the_end() -> None:
    lines = shown(random_journal(), verbosity=1)
    counts = [line for line in lines if " trials: " in line or line.startswith("1 trial: ")]
    assert len(counts) == 1 + 65 // 30 + 1  # after 2 s, every 30 s, and the end
    assert sum(line.startswith("trial  status") for line in lines) == 1
    assert sum("ValueError: bad lr" in line for line in lines) == 1
    assert "reports (" in counts[-1]


def test_a_short_sweep_is_shown_at_its_end_alone() -> None:
    assert len([line for line in shown(random_journal(), verbosity=1, step_s=0.01) if " trials: " in line]) == 1


def test_verbosity_0_is_silent_and_2_tells_each_end() -> None:
    assert shown(random_journal(), verbosity=0) == []
    told = shown(asha_journal(), verbosity=2)
    assert any("  stop: below the top third at 1" in line for line in told)
    assert sum(line.endswith(" done") for line in told) == 27
    assert sum("accuracy=" in line and line.startswith("trial ") for line in told) == 0
    reports = shown(asha_journal(), verbosity=3)
    assert (
        sum("accuracy=" in line and line.startswith("trial ") for line in reports) == asha_journal().history.num_reports
    )


def test_nothing_is_drawn_when_nothing_is_new() -> None:
    stream, clock = io.StringIO(), FakeClock()
    view = LiveView(stream=stream, clock=clock)
    for record in random_journal().records:
        view.take(record.kind, record.data, record.at)
    view.tick()
    clock.advance(60)
    view.tick()
    before = stream.getvalue()
    assert before
    clock.advance(60)
    view.tick()
    assert stream.getvalue() == before


def test_a_terminal_gets_a_live_table_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "14")
    monkeypatch.setenv("TERM", "xterm")
    stream, clock = Terminal(), FakeClock()
    view = LiveView(stream=stream, clock=clock)
    for record in asha_journal().records:
        view.take(record.kind, record.data, record.at)
        clock.advance(0.01)
        view.tick()
    drawn = stream.getvalue().count("\x1b[1mdigits")
    assert drawn <= 1 + 0.01 * len(asha_journal().records) / 0.5
    view.close()
    assert "accuracy" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_a_notebook_s_table_is_drawn_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    module = ModuleType("IPython.display")
    module.HTML = str  # type: ignore[attr-defined]

    def display(page: str, display_id: bool) -> SimpleNamespace:
        pages.append(page)
        return SimpleNamespace(update=pages.append)

    module.display = display  # type: ignore[attr-defined]
    parent = ModuleType("IPython")
    parent.display = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", parent)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    clock = FakeClock()
    view = LiveView(settings=settings_of(JupyterNotebookReporter(metric_columns=["loss"])), clock=clock)
    for record in random_journal().records:
        view.take(record.kind, record.data, record.at)
        clock.advance(1)
        view.tick()
    view.close()
    assert len(pages) > 10
    assert "<th>loss</th>" in pages[-1]


def test_reporters_of_ray_are_settings() -> None:
    reporter = CLIReporter(
        metric_columns=["loss"], parameter_columns={"lr": "rate"}, max_progress_rows=7, max_report_frequency=9
    )
    reporter.add_metric_column("accuracy", "acc")
    reporter.add_parameter_column("layers")
    settings = settings_of(reporter)
    assert settings.metric_columns == {"loss": "loss", "accuracy": "acc"}
    assert settings.parameter_columns == {"lr": "rate", "layers": "layers"}
    assert (settings.max_rows, settings.line_interval_s, settings.is_notebook) == (7, 9, False)
    assert settings_of(None) == ViewSettings()
    with pytest.raises(UsageError, match="duplicate column 'loss'"):
        reporter.add_metric_column("loss")


def test_a_reporter_that_nobody_would_call_is_refused() -> None:
    class Own(CLIReporter):
        def report(self, trials: Any, done: bool) -> None: ...

    with pytest.raises(UsageError, match=r"Own has its own report\(\)"):
        settings_of(Own())
    with pytest.raises(UsageError, match="no settings of ours"):
        settings_of(object())


def test_watching_another_process_s_sweep(tmp_path: Path) -> None:
    journal = random_journal()

    class Growing(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            journal.append(tmp_path, num_records=5)

    journal.append(tmp_path, num_records=5)
    stream = io.StringIO()
    watch(tmp_path, stream=stream, clock=Growing())
    assert "ended: all trials are over" in stream.getvalue()
    once = io.StringIO()
    watch(tmp_path, follows=False, stream=once, clock=FakeClock())
    assert once.getvalue().splitlines()[0].startswith("8 trials: 1 waiting, 6 done, 1 failed; 26 reports")
    with pytest.raises(NotFoundError, match="no sweep"):
        watch(tmp_path / "nothing", stream=stream)
    (tmp_path / "new").mkdir()
    watch(tmp_path / "new", stream=stream, clock=FakeClock())


def test_watching_tells_why_a_head_elsewhere_starts_nothing(tmp_path: Path) -> None:
    journal = asha_journal()
    journal.records = journal.records[:1]
    journal.append(tmp_path, num_records=1)
    folder, shown = SweepFolder(tmp_path), io.StringIO()
    write_json(folder.head_note, {"waits": "no node with 4 GPUs is free"})
    watch(tmp_path, follows=False, stream=shown, clock=FakeClock())
    assert "nothing starts" not in shown.getvalue(), "that head is gone"
    clock = FakeClock()
    begin = clock.monotonic()
    watch(tmp_path, stream=shown, clock=clock)
    assert 10 <= clock.monotonic() - begin <= 12, "nobody follows what has no head"
    descriptor = os.open(folder.head_journal, os.O_RDWR)
    take_lock(descriptor, folder.head_journal)
    try:
        watch(tmp_path, follows=False, stream=shown, clock=FakeClock())
    finally:
        os.close(descriptor)
    assert "nothing starts: no node with 4 GPUs is free" in shown.getvalue()


class Head:
    """A controller as the view sees one: its tables follow a journal, as they do in the head."""

    def __init__(self, journal: Journal, folder: Path) -> None:
        self.folder = SweepFolder(folder)
        self.waiting = ""
        self._journal = journal
        self.core: Any = SimpleNamespace(num_reports=0, at=0.0)
        self.fold(0)

    def fold(self, num_records: int) -> None:
        copy = Journal()
        copy.records = self._journal.records[:num_records]
        history = copy.history
        is_max = history.objectives.is_max[:1] == (True,)
        trials = {}
        for found in history.trials.values():
            values = [report.metrics.get("loss") for report in found.reports]
            scores = [value for value in values if isinstance(value, float) and not math.isnan(value)]
            trials[found.id] = Trial(
                id=found.id, number=found.number, config=found.config, assigned=found.assigned, status=found.status,
                iteration=found.iteration, last=found.last, best=(max if is_max else min)(scores, default=None),
            )  # fmt: skip
        live = {trial.id: trial for trial in trials.values() if not trial.status.is_over}
        running = {trial.id: trial for trial in live.values() if trial.status is TrialStatus.RUNNING}
        table = SimpleNamespace(counts=history.counts, trials=trials, live=live, running=running)
        settings = history.settings
        self.core.settings = settings
        self.core.state = SimpleNamespace(table=table, notes=[], usage=SimpleNamespace(seconds=7.0))
        self.core.num_reports = history.num_reports
        self.core.at = history.last_at


@pytest.mark.parametrize("begins_at", [2, 40])
def test_the_head_s_view_sees_what_a_reader_of_the_journal_sees(tmp_path: Path, begins_at: int) -> None:
    journal, clock = random_journal(num_trials=12), FakeClock()
    journal.append(tmp_path, num_records=begins_at)
    head, place = Head(journal, tmp_path), begins_at
    view = LiveView(stream=io.StringIO(), clock=clock)
    looking = HeadView(view, clock=clock)
    while True:
        head.fold(place)
        looking.look(head)
        if place >= len(journal.records):
            break
        journal.append(tmp_path, num_records=9)
        place = min(place + 9, len(journal.records))
        clock.advance(1)
    looking.close(head)
    history = journal.history
    progress = view.progress
    assert progress.counts == history.counts
    assert progress.num_reports == history.num_reports
    reports = ((report.metrics["loss"], trial.id) for trial in history.trials.values() for report in trial.reports)
    best = min(pair for pair in reports if not math.isnan(pair[0]))
    assert progress.best is not None
    assert (progress.best.best, progress.best.trial) == best
    finished = {row.trial: row.metrics for row in progress.top_finished(50)}
    assert all(metrics == history.trials[trial].last for trial, metrics in finished.items())


def test_a_look_between_two_pictures_reads_nothing(tmp_path: Path) -> None:
    journal, clock = random_journal(), FakeClock()
    journal.append(tmp_path)
    head = Head(journal, tmp_path)
    head.fold(2)
    looking = HeadView(LiveView(stream=io.StringIO(), clock=clock), clock=clock)
    looking.look(head)
    broken = SimpleNamespace()  # has nothing that could be read
    looking.look(broken)
    clock.advance(1)
    with pytest.raises(AttributeError):
        looking.look(broken)


def test_rich_is_imported_for_terminals_alone() -> None:
    assert not hasattr(live_module, "Console")


def test_a_terminal_without_rich_gets_lines_and_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    stream, clock = Terminal(), FakeClock()
    view = LiveView(stream=stream, clock=clock)
    for record in random_journal().records:
        view.take(record.kind, record.data, record.at)
    view.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "no live table without rich: pip install 'windlass[tune]'"
    assert sum(line.startswith("trial  status") for line in lines) == 1
    assert "\x1b" not in stream.getvalue()


def test_the_head_s_view_tells_each_report_when_asked_to(tmp_path: Path) -> None:
    journal, clock, stream = random_journal(), FakeClock(), io.StringIO()
    journal.append(tmp_path, num_records=2)
    head = Head(journal, tmp_path)
    head.fold(2)
    looking = HeadView(LiveView(verbosity=3, stream=stream, clock=clock), clock=clock)
    looking.look(head)
    journal.append(tmp_path)
    head.fold(len(journal.records))
    clock.advance(1)
    looking.look(head)
    assert sum("training_iteration=" in line for line in stream.getvalue().splitlines()) == journal.history.num_reports


def test_what_the_head_notes_is_shown_once(tmp_path: Path) -> None:
    journal = random_journal(num_trials=2)
    journal.append(tmp_path, num_records=2)
    head, stream = Head(journal, tmp_path), io.StringIO()
    head.fold(2)
    head.core.state.notes.append("trial 00000 never saved a checkpoint")
    view = HeadView(LiveView(stream=stream, clock=FakeClock()), clock=FakeClock())
    view.look(head)
    view.close(head)
    assert stream.getvalue().count("never saved a checkpoint") == 1
