from __future__ import annotations

from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.launcher.verify.verify import verify
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create


def run_in(folder: Path) -> RunFolder:
    (folder / "runs").mkdir()
    return create(Home(folder), "exp-00000000")


def journal_finding(run: RunFolder) -> tuple[str, str]:
    found = next(iter(verify(run)))
    assert found.what == "journal"
    return found.status, found.message


def test_a_damaged_last_record_fails_the_journal(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    writer = JournalWriter(run.journal, "w", SystemClock())
    for text in ("a", "b"):
        writer.append("note", message=text)
    writer.close()
    assert journal_finding(run) == ("ok", "2 records")
    path = run.journal / "w.wj"
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"z"'))
    assert journal_finding(run) == ("failed", "1 damaged record among 1")
    assert run.facts().num_damaged == 1


def test_a_journal_that_is_a_file_fails(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.journal.rmdir()
    run.journal.write_text("")
    findings = list(verify(run))
    assert [(found.what, found.status) for found in findings] == [("journal", "failed"), ("plan", "failed")]
    assert findings[0].message == f"the journal {run.journal} is not a folder"
