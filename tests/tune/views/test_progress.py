from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.tune.results.journals import Journal, asha_journal, pbt_journal, random_journal
from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.trial import TrialStatus
from windlass.tune.views.layout import best_line, count_line, failure_lines, fit, trial_table, wait_lines
from windlass.tune.views.live import html_page, plain_table
from windlass.tune.views.progress import SweepProgress
from windlass.tune.views.reporters import ViewSettings


def fed(journal: Journal, num_records: int | None = None) -> SweepProgress:
    progress = SweepProgress()
    for record in journal.records[:num_records]:
        progress.take(record.kind, record.data, record.at)
    return progress


@pytest.mark.parametrize("journal", [random_journal(), asha_journal(), pbt_journal()], ids=["random", "asha", "pbt"])
def test_counters_are_those_of_the_history_at_every_record(journal: Journal) -> None:
    for num_records in range(2, len(journal.records), 7):
        progress = fed(journal, num_records)
        copy = Journal()
        copy.records = journal.records[:num_records]
        history = copy.history
        assert progress.counts == history.counts
        assert progress.num_reports == history.num_reports
        assert set(progress.live) == {trial.id for trial in history.trials.values() if not trial.status.is_over}


def test_the_best_is_the_one_of_the_analysis() -> None:
    journal = asha_journal()
    best = ExperimentAnalysis(journal.history).get_best_trial(scope="all")
    progress = fed(journal)
    assert best is not None
    assert progress.best is not None
    assert progress.best.trial == best.trial_id
    assert progress.best.best == best.metric_analysis["accuracy"]["max"]
    assert best_line(progress, ViewSettings()).startswith(
        f"best accuracy {progress.best.best:.5g} in trial {best.trial_id}: lr="
    )


def test_it_keeps_few_of_the_trials_that_are_over() -> None:
    random, journal = Random(1), Journal()
    progress = fed(journal)
    scores = []
    for number in range(1000):
        trial = f"{number:05d}"
        scores.append(random.random())
        metrics = {"loss": scores[-1], "training_iteration": 1}
        made: list[tuple[str, dict[str, Any]]] = [
            ("trial-suggested", {"trial": trial, "config": {"x": 1}, "assigned": {"x": 1}}),
            ("trial-chosen", {"trial": trial, "attempt": 1, "restore": None}),
            ("trial-reported", {"trial": trial, "attempt": 1, "metrics": metrics}),
            ("trial-ended", {"trial": trial, "attempt": 1, "how": "done", "status": "TERMINATED"}),
        ]
        for kind, data in made:
            progress.take(kind, data, 1.0)
    assert len(progress.live) == 0
    assert len(progress._kept) <= 100
    top = [row.best for row in progress.top_finished(10)]
    assert top == sorted(scores)[:10]
    assert progress.num_trials == 1000


def test_reasons_to_wait_come_and_go() -> None:
    journal = Journal()
    for _ in range(2):
        journal.start(journal.suggest({"lr": 0.1}))
        trial = journal.records[-1].data["trial"]
        journal.report(trial, 1, loss=1.0, decision="pause", by="scheduler", why="waits for its rung")
    assert wait_lines(fed(journal)) == ["2 wait: waits for its rung"]
    journal.report("00001", 2, loss=1.0, acts=[{"act": "unpause", "trial": "00000", "why": "it is promoted"}])
    assert wait_lines(fed(journal)) == ["1 wait: waits for its rung", "1 wait: it is promoted"]
    journal.start("00000")
    journal.start("00001")
    assert wait_lines(fed(journal)) == []


def test_the_lines_of_a_view() -> None:
    progress = fed(random_journal())
    assert count_line(progress, reports_per_s=12.345) == (
        "8 trials: 1 waiting, 6 done, 1 failed; 26 reports (12.3/s); 1 interruption; 36s"
    )
    assert failure_lines(progress, 5) == ["trial 00005 failed: ValueError: bad lr"]
    assert wait_lines(progress) == ["ended: all trials are over"]


def test_failures_are_few_and_newest_first() -> None:
    journal = Journal()
    for number in range(9):
        journal.start(journal.suggest({"lr": 0.1}))
        journal.end(f"{number:05d}", how="failed", status="ERROR", error=f"Traceback\nValueError: number {number}\n")
    assert failure_lines(fed(journal), 2) == [
        "trial 00008 failed: ValueError: number 8",
        "trial 00007 failed: ValueError: number 7",
        "and 7 earlier ones",
    ]


def test_running_trials_stand_first_then_the_best() -> None:
    journal = asha_journal()
    extra = journal.suggest({"lr": 0.5, "layers": 2, "act": "relu"})
    journal.start(extra)
    table = trial_table(fed(journal), ViewSettings(max_rows=6))
    assert table.rows[0][:3] == [extra, "running", "node1"]
    assert len(table.rows) == 6
    assert table.num_hidden == 28 - 6
    values = [float(row[table.headings.index("accuracy")]) for row in table.rows[1:]]
    assert values == sorted(values, reverse=True)
    assert plain_table(table).splitlines()[-1] == "and 22 more trials"


def test_columns_are_those_that_were_asked_for() -> None:
    settings = ViewSettings(
        metric_columns={"loss": "L", "training_iteration": "it"}, parameter_columns={"lr": "rate"}, max_width=8
    )
    table = trial_table(fed(random_journal()), settings)
    assert table.headings == ["trial", "status", "where", "rate", "L", "it"]
    assert table.numeric == [False, False, False, True, True, True]
    assert all(len(cell) <= 8 for row in table.rows for cell in row[2:])


def test_a_narrow_screen_drops_equal_columns_first_and_never_the_score() -> None:
    table = trial_table(fed(random_journal()), ViewSettings())
    narrow = fit(table, 60, keeps="loss")
    assert "act" in table.headings  # always relu
    assert "act" not in narrow.headings
    assert {"trial", "status", "loss"} <= set(narrow.headings)
    assert max(map(len, plain_table(narrow).splitlines())) <= 60
    assert fit(table, 10, keeps="loss").headings == ["trial", "status", "loss"]


def test_text_of_trials_is_escaped_in_html() -> None:
    journal = Journal()
    journal.start(journal.suggest({"name": "<script>alert(1)</script>"}))
    page = html_page(fed(journal), ViewSettings(max_width=40))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_a_trial_that_is_taken_up_again_is_counted_once() -> None:
    journal = random_journal()
    journal.add("sweep-requested", what="resume", acts=[{"act": "requeue", "trial": "00005", "why": "resumed"}])
    progress = fed(journal)
    assert progress.counts[TrialStatus.ERROR] == 0
    assert progress.num_trials == 8
    assert "00005" in progress.live
    assert progress.ended_why == ""
