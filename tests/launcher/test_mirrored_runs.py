"""Runs that live at a site: what commands hear from it and tell it, and what they do while it is silent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launcher.bench import Bench, PickyBackend
from tests.launcher.site_fakes import Elsewhere, live_elsewhere
from windlass import Run
from windlass.cli import main
from windlass.cli.following import Following, follow_to_verdict
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError
from windlass.launcher import control
from windlass.record import events
from windlass.record.journal import read_journal
from windlass.record.manifest import commit_manifest
from windlass.record.state import State
from windlass.runs.home import Home


@pytest.fixture
def elsewhere(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    return live_elsewhere(bench.launch(), tmp_path / "shared", monkeypatch)


def test_a_look_hears_what_the_site_says(elsewhere: Elsewhere) -> None:
    elsewhere.says_ended()
    assert elsewhere.run.reconcile() == []
    assert elsewhere.run.state is State.SUCCEEDED


def test_what_a_look_writes_is_told_to_the_site(elsewhere: Elsewhere, backend: PickyBackend) -> None:
    backend.lose("main-1")
    assert "was lost" in elsewhere.run.reconcile()[0]
    assert events.JOB_LOST in elsewhere.kinds()


def test_a_stop_reaches_the_site(elsewhere: Elsewhere) -> None:
    assert control.stop(elsewhere.run.folder, elsewhere.run._home) == ["main"]
    assert events.STOP_REQUESTED in elsewhere.kinds()


def test_a_stop_of_what_ended_there_asks_for_nothing(elsewhere: Elsewhere) -> None:
    elsewhere.says_ended()
    assert control.stop(elsewhere.run.folder, elsewhere.run._home) == []
    assert events.STOP_REQUESTED not in elsewhere.kinds()


@pytest.mark.parametrize("verb", [control.stop, control.retry, control.resume], ids=lambda verb: verb.__name__)
def test_while_the_site_is_silent_nothing_is_asked_of_it(elsewhere: Elsewhere, verb: Callable[..., object]) -> None:
    before = len(read_journal(elsewhere.run.folder.journal))
    elsewhere.is_silent()
    with pytest.raises(UnreachableError) as caught:
        verb(elsewhere.run.folder, elsewhere.run._home)
    assert caught.value.exit_code == 6
    assert len(read_journal(elsewhere.run.folder.journal)) == before


def test_a_stop_that_was_cut_off_on_its_way_goes_with_the_next_look(elsewhere: Elsewhere) -> None:
    elsewhere.shell.cuts = [("", 0), ("", 0), ("up", 0)]
    with pytest.raises(UnreachableError):
        control.stop(elsewhere.run.folder, elsewhere.run._home)
    assert events.STOP_REQUESTED not in elsewhere.kinds()
    elsewhere.run.reconcile()
    assert elsewhere.kinds().count(events.STOP_REQUESTED) == 1


def test_following_hands_over_what_was_printed_there(elsewhere: Elsewhere) -> None:
    elsewhere.prints("one\ntwo")
    elsewhere.says_ended()
    lines = [(line.task, line.rank, line.text) for line in elsewhere.run.logs(follow=True, timeout_s=300)]
    assert lines == [("main", 0, "one"), ("main", 0, "two")]
    assert elsewhere.run.state is State.SUCCEEDED


def test_following_outlives_a_break(elsewhere: Elsewhere) -> None:
    elsewhere.prints("one\n")
    elsewhere.says_ended()
    elsewhere.is_silent(3)
    assert [line.text for line in elsewhere.run.logs(follow=True, timeout_s=300)] == ["one"]
    assert elsewhere.run.state is State.SUCCEEDED


def test_an_output_is_fetched(elsewhere: Elsewhere) -> None:
    elsewhere.there.out("main").mkdir()
    (elsewhere.there.out("main") / "model").write_text("weights")
    assert (elsewhere.run.fetch_output("main") / "model").read_text() == "weights"
    with pytest.raises(NotFoundError, match="has no task `other`"):
        elsewhere.run.fetch_output("other")


def test_a_list_of_outputs_brings_the_manifest_alone(elsewhere: Elsewhere) -> None:
    out = elsewhere.there.out("main")
    out.mkdir()
    (out / "model").write_text("weights")
    manifest = commit_manifest(out, is_beside=True)
    assert elsewhere.run.list_output("main").digest == manifest.digest
    assert not elsewhere.run.folder.out("main").exists()


def test_outputs_are_pulled_and_exported_from_a_site(elsewhere: Elsewhere, tmp_path: Path) -> None:
    out = elsewhere.there.out("main")
    out.mkdir()
    (out / "model").write_text("weights")
    manifest = commit_manifest(out, is_beside=True)
    elsewhere.says_ended()
    elsewhere.run.reconcile()
    assert (elsewhere.run.pull_output("main", tmp_path / "here") / "model").read_text() == "weights"
    (out / "model").write_text("spoiled")
    with pytest.raises(PreconditionError, match="does not match its sha256 in the manifest"):
        elsewhere.run.pull_output("main", tmp_path / "again")
    (out / "model").write_text("weights")
    elsewhere.run.export(tmp_path / "run.tar.gz")
    found = Run.import_archive(tmp_path / "run.tar.gz", Home(tmp_path / "other"))
    assert not found.folder.is_mirrored
    assert found.list_output("main").digest == manifest.digest


def test_a_run_whose_folder_went_away_there_is_an_error(elsewhere: Elsewhere) -> None:
    elsewhere.there.path.rename(elsewhere.there.path.with_name("gone"))
    with pytest.raises(NotFoundError, match="no run in"):
        elsewhere.run.reconcile()


def test_a_run_whose_launch_died_before_it_was_shipped_ends(elsewhere: Elsewhere) -> None:
    elsewhere.there.path.rename(elsewhere.there.path.with_name("gone"))
    folder = elsewhere.run.folder
    for path in (*folder.journal.iterdir(), folder.path / "provenance.json"):
        path.unlink()
    assert elsewhere.run.reconcile() == ["the command that launched it ended before all files were staged"]
    assert elsewhere.run.state is State.FAILED


def test_a_command_that_follows_shows_lines_and_the_verdict(
    elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere.prints("old\n")
    following = Following(elsewhere.run.folder, elsewhere.run._home, skips_past=True)
    elsewhere.prints("new\n")
    elsewhere.says_ended()
    elsewhere.is_silent(1)
    assert follow_to_verdict(following) == 0
    said = capsys.readouterr()
    assert said.out == "new\n"
    assert said.err.count("continues; still following") == 1


class TestCommands:
    @pytest.fixture(autouse=True)
    def _streams(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "100")

    def test_looking_shows_what_is_known_while_the_site_is_silent(
        self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        elsewhere.run.reconcile()
        elsewhere.is_silent()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 3 * 3600)
        for verb in (("show", "last"), ("ps",), ("logs", "last")):
            assert main(verb) == 0
            said = capsys.readouterr()
            assert "last contact 3h ago" in said.err + said.out, verb
            assert elsewhere.run.id in said.out + said.err

    def test_asking_says_that_the_site_is_silent(
        self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]
    ) -> None:
        elsewhere.is_silent()
        for verb in ("stop", "retry"):
            assert main((verb, "last")) == 6
            assert "[site-unreachable]" in capsys.readouterr().err

    def test_outputs_are_fetched(self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(("outputs", "fetch", "last")) == 0
        assert "note: task main has no outputs there" in capsys.readouterr().err
        elsewhere.there.out("main").mkdir()
        (elsewhere.there.out("main") / "model").write_text("weights")
        assert main(("outputs", "fetch", "last")) == 0
        assert capsys.readouterr().out == f"main  {elsewhere.run.folder.out('main')}\n"
        assert (elsewhere.run.folder.out("main") / "model").read_text() == "weights"

    def test_logs_come_with_the_command(self, elsewhere: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
        elsewhere.prints("hello\n")
        assert main(("logs", "last")) == 0
        assert capsys.readouterr().out == "hello\n"
        elsewhere.prints("more\n")
        elsewhere.says_ended()
        assert main(("logs", "last", "--follow")) == 0
        assert capsys.readouterr().out == "hello\nmore\n"
