from __future__ import annotations

import pytest

from tests.tune.results.journals import Journal, asha_journal, pbt_journal, random_journal
from windlass.tune.results import TrialMissingError, explain, lineage
from windlass.tune.results.lineages import policy_rows
from windlass.tune.results.why import explain_wait, format_value


def test_a_lost_worker_and_the_restart_are_told_in_order() -> None:
    lines = explain(random_journal().history, "4")
    assert lines[0].startswith("trial 00004: TERMINATED, 3 reports, iteration 3, loss ")
    text = "\n".join(lines)
    order = ["suggested by Random", "attempt 1 chosen to run from the beginning", "attempt 1 runs in slot-0 on node1",
             "iteration 2: queued again, its worker or node was lost", "the node went away",
             "attempt 2 chosen to run from its checkpoint of iteration 2: its worker was lost", "ended: it was done"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_a_failure_shows_the_last_line_of_its_traceback() -> None:
    text = "\n".join(explain(random_journal().history, "00005"))
    assert "ERROR (ValueError)" in text
    assert "ended, it failed with ValueError\n" in text
    assert "\n       ValueError: bad lr" in text


def test_a_stop_has_the_scheduler_s_reason() -> None:
    history = asha_journal().history
    stopped = next(
        trial for trial in history.trials.values() if any(made.decision == "stop" for made in trial.decisions)
    )
    text = "\n".join(explain(history, stopped.id))
    assert "stopped by the scheduler: below the top third at" in text


def test_both_sides_of_a_clone_tell_it() -> None:
    history = pbt_journal().history
    first = lineage(history)[0]
    taken = "\n".join(explain(history, first.trial))
    assert f"takes over trial {first.source} as of iteration 4: it is in the lower quarter" in taken
    assert "with lr " in taken
    assert "left to the scheduler" not in taken
    given = "\n".join(explain(history, first.source))
    assert f"iteration {first.source_iteration}: cloned by trial {first.trial}" in given


def test_a_stop_from_another_trial_s_report_names_it() -> None:
    journal = Journal()
    for _ in range(2):
        trial = journal.suggest({"lr": 0.1})
        journal.start(trial)
    act = {"act": "stop", "trial": "00000", "why": "the bracket is over"}
    journal.report("00001", 3, loss=1.0, acts=[act])
    assert any(
        "stopped by the scheduler, after a report of trial 00001: the bracket is over" in line
        for line in explain(journal.history, "0")
    )


def test_an_unknown_trial_is_an_error() -> None:
    with pytest.raises(TrialMissingError, match="no trial '99'") as caught:
        explain(random_journal().history, "99")
    assert "8" in caught.value.hint


def test_what_waits_and_why() -> None:
    journal = Journal()
    for _ in range(3):
        trial = journal.suggest({"lr": 0.1})
    journal.start("00000")
    journal.report("00000", 1, loss=1.0, decision="pause", by="scheduler", why="waits for its bracket")
    journal.end("00000", how="halted", status="PAUSED", why="waits for its bracket")
    assert explain_wait(journal.history) == [
        "2 PENDING: for a slot; none is connected",
        "1 PAUSED: waits for its bracket",
    ]
    assert explain(journal.history, trial)[-1] == "  waits: for a slot; none is connected"


def test_policies_hold_what_the_sources_went_through() -> None:
    history = pbt_journal(num_rounds=6).history
    everything = policy_rows(history)
    assert [row[2] for row in everything] == sorted(row[2] for row in everything)
    for exploit in lineage(history):
        rows = policy_rows(history, exploit.trial)
        assert rows[-1][5] == history.trials[exploit.trial].config or len(rows) > 1
        for row in rows:
            assert row in everything
        assert rows[-1][0].startswith(f"{int(exploit.trial)}_lr=")


def test_values() -> None:
    assert [format_value(value) for value in (True, None, 3, 0.123456789, "x" * 50)] == [
        "True", "None", "3", "0.12346", "x" * 18 + "..." + "x" * 19
    ]  # fmt: skip
