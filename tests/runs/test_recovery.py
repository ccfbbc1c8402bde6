"""A journal that lost records, beside a folder that knows better."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.manifest import commit_manifest
from windlass.record.state import State
from windlass.record.verdict import VERDICT, read_verdict
from windlass.runs.index import Index
from windlass.runs.recovery import missing_records
from windlass.runs.store import RunFolder
from windlass.supervise.gang.journal_view import RunJournalView


def finished(folder: Path, verdict: str = "succeeded", cause: str = "ok") -> RunFolder:
    """A run as its supervisor leaves it: folder of the job, log, verdict and, after a success, the manifest."""
    script = RunScript(home_in(folder), "exp-abcdefgh").submit().start()
    run = script.run
    (run.jobs / "train-1").mkdir()
    (run.logs / "1" / "train").mkdir(parents=True)
    script.job.close()
    journal = RunJournalView(run.journal, "train", 0, script.clock, on_record=lambda record: None)
    journal.append(events.TASK_ENDED, job=1, attempt=1, verdict=verdict, cause=cause, message="")
    if verdict == "succeeded":
        run.out("train").mkdir()
        made = commit_manifest(run.out("train"), is_beside=True)
        journal.append(events.OUTPUTS, attempt=1, num_files=0, bytes=0, digest=made.digest)
    journal.close()
    script.client.close()
    return run


def cut(path: Path, num_lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:num_lines]))


def test_a_whole_journal_is_not_questioned(tmp_path: Path) -> None:
    run = finished(tmp_path)
    facts = run.facts()
    assert (facts.state, facts.damage, missing_records(run.path, facts)) == (State.SUCCEEDED, [], [])


@pytest.mark.parametrize("verdict", ["succeeded", "failed", "stopped"])
@pytest.mark.parametrize("num_lines", [0, 1])
def test_a_cut_file_leaves_the_verdict(tmp_path: Path, num_lines: int, verdict: str) -> None:
    run = finished(tmp_path, verdict, "ok" if verdict == "succeeded" else "user-error")
    cut(run.journal / "train.0.wj", num_lines)
    facts = run.facts()
    assert str(facts.state) == verdict
    said = f"journal/train.0.wj: {num_lines} of its 2 records are left"
    assert facts.damage == [f"{said}; the verdict of train is from jobs/train-1/{VERDICT}"]


def test_a_record_that_is_missing_behind_the_verdict_is_named(tmp_path: Path) -> None:
    run = finished(tmp_path)
    cut(run.journal / "train.0.wj", 2)
    (line,) = missing_records(run.path, run.facts())
    assert line == "journal/train.0.wj: no record of the outputs of train, which out/train.manifest.json lists"


def test_a_file_that_is_gone_leaves_the_verdict(tmp_path: Path) -> None:
    run = finished(tmp_path)
    (run.journal / "train.0.wj").unlink()
    facts = run.facts()
    assert facts.state is State.SUCCEEDED
    assert facts.damage[0].startswith("journal/train.0.wj: the file is missing")
    assert "no record of attempt 1, whose log is in logs/1/train" in missing_records(run.path, facts)[1]
    assert facts.outputs["train"][1] == 0


def test_without_a_copy_of_the_verdict_the_manifest_counts(tmp_path: Path) -> None:
    """Runs of earlier versions have no copy."""
    run = finished(tmp_path)
    (run.jobs / "train-1" / VERDICT).unlink()
    cut(run.journal / "train.0.wj", 0)
    facts = run.facts()
    assert facts.state is State.SUCCEEDED
    expected = "journal/train.0.wj: no record of the end of train; out/train.manifest.json shows that it succeeded"
    assert facts.damage == [expected]


def test_without_verdict_and_manifest_the_log_shows_what_is_missing(tmp_path: Path) -> None:
    run = finished(tmp_path, "failed", "user-error")
    (run.jobs / "train-1" / VERDICT).unlink()
    cut(run.journal / "train.0.wj", 0)
    facts = run.facts()
    assert facts.state is State.QUEUED
    assert missing_records(run.path, facts) == [
        "journal/train.0.wj: no record of attempt 1, whose log is in logs/1/train"
    ]


def test_a_lost_client_file_leaves_the_verdict_and_names_the_job(tmp_path: Path) -> None:
    run = finished(tmp_path)
    (run.journal / "client-1.wj").unlink()
    facts = run.facts()
    assert facts.state is State.SUCCEEDED
    assert missing_records(run.path, facts) == [
        "journal/client-*.wj: no record of job 1 of train, whose folder is in jobs/"
    ]


def test_of_a_lost_journal_the_verdict_is_left(tmp_path: Path) -> None:
    run = finished(tmp_path)
    for path in run.journal.iterdir():
        path.unlink()
    assert run.facts().state is State.SUCCEEDED


def test_the_verdict_of_an_earlier_job_says_nothing_of_a_retry(tmp_path: Path) -> None:
    run = finished(tmp_path, "failed", "user-error")
    pen = JournalWriter(run.journal, "client-2", FakeClock())
    pen.append(events.JOB_INTENDED, task="train", job=2, token="t", backend="local", resets_budgets=True)
    pen.close()
    facts = run.facts()
    assert (facts.state, facts.damage) == (State.QUEUED, [])


def test_a_damaged_copy_is_no_verdict(tmp_path: Path) -> None:
    run = finished(tmp_path, "failed", "user-error")
    path = run.jobs / "train-1" / VERDICT
    path.write_bytes(path.read_bytes()[:-5])
    cut(run.journal / "train.0.wj", 1)
    assert run.facts().state is State.RUNNING


def test_a_verdict_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    script = RunScript(home_in(tmp_path), "exp-abcdefgh").submit().start()
    script.close()
    journal = RunJournalView(script.run.journal, "train", 0, script.clock, on_record=lambda record: None)
    journal.append(events.TASK_ENDED, job=1, attempt=1, verdict="failed", cause="x", message="")
    journal.close()
    assert script.run.facts().state is State.FAILED


def test_ps_names_the_damage(tmp_path: Path) -> None:
    run = finished(tmp_path)
    cut(run.journal / "train.0.wj", 0)
    index = Index(home_in(tmp_path), folder=tmp_path / "cache")
    index.refresh()
    (row,) = index.rows()
    assert (row.state, row.note.split(":")[0]) == ("succeeded", "journal/train.0.wj")


def test_the_copy_is_the_record_itself(tmp_path: Path) -> None:
    run = finished(tmp_path)
    (record,) = [found for found in read_journal(run.journal) if found.kind == events.TASK_ENDED]
    assert read_verdict(run.jobs / "train-1") == record
    assert read_verdict(run.jobs / "train-2") is None
