from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.launcher.site_fakes import FolderShell
from windlass.core.clock import SystemClock
from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError
from windlass.launcher.remote import client
from windlass.launcher.remote import mirror as mirror_module
from windlass.launcher.remote.mirror import Mirror, data_at_site
from windlass.record.journal import JournalWriter, read_journal
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.supervise.logs.index import IndexRecord
from windlass.supervise.remote.delivery import read_delivery

RUN = "run-abcd2345"


@pytest.fixture(autouse=True)
def _hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_QUIET_S", 0.0)


class Bench:
    """A run here, and its other half in `there`."""

    def __init__(self, folder: Path) -> None:
        home = Home(folder / "home")
        self.run = create(home, RUN, {"plan.json": b"{}", "places.json": b"{}"})
        self.state = folder / "shared" / "windlass"
        self.there = RunFolder(self.state / "runs" / RUN)
        self.shell = FolderShell()
        self.archive = folder / "windlass-1.pyz"
        self.archive.write_bytes(b"zipapp")
        (self.run.path / "code" / "pkg").mkdir(parents=True)
        (self.run.path / "code" / "pkg" / "train.py").write_text("print(1)\n")
        (self.run.path / "code" / "tool.sh").write_text("#!/bin/sh\n")
        (self.run.path / "code" / "tool.sh").chmod(0o755)
        os.symlink("pkg/train.py", self.run.path / "code" / "link.py")
        (self.run.jobs / "train-1").mkdir()
        (self.run.jobs / "train-1" / "job.json").write_text("{}")
        self.mirror = self.another()

    def another(self) -> Mirror:
        """As a client that comes later would make it."""
        return Mirror(self.run, PurePosixPath(self.there.path), self.shell, archive=self.archive)

    def says(self, writer: str, *messages: str, where: RunFolder | None = None) -> None:
        pen = JournalWriter((where or self.there).journal, writer, SystemClock())
        for message in messages:
            pen.append("note", task="", message=message)
        pen.close()

    def heard(self, where: RunFolder | None = None) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for record in read_journal((where or self.run).journal):
            found.setdefault(record.writer, []).append(str(record.data["message"]))
        return found

    def prints(self, text: bytes, attempt: int = 1) -> None:
        path = self.there.logs / str(attempt) / "train" / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(text)

    def printed(self, attempt: int = 1) -> bytes:
        return (self.run.logs / str(attempt) / "train" / "0.log").read_bytes()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.mirror.ship()
    return made


def test_shipping_makes_the_run_at_the_site_with_code_jobs_and_data(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    corpus = tmp_path / "corpus"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "deep" / "a.txt").write_text("text")
    there = data_at_site(PurePosixPath(bench.state), "d" * 64, corpus)
    bench.mirror.ship({there: corpus})
    root = bench.there.path
    assert (root / "plan.json").read_bytes() == b"{}"
    assert (root / "code" / "pkg" / "train.py").read_text() == "print(1)\n"
    assert os.readlink(root / "code" / "link.py") == "pkg/train.py"
    assert (root / "code" / "tool.sh").stat().st_mode & 0o111
    assert (root / "jobs" / "train-1" / "job.json").exists()
    assert sorted(path.name for path in root.iterdir()) == sorted(
        ["plan.json", "places.json", "code", "jobs", "journal", "logs", "checkpoints", "out"]
    )
    assert (Path(there) / "deep" / "a.txt").read_text() == "text"
    assert str(there).endswith(f"/data/{'d' * 40}/corpus")


def test_what_is_there_is_not_shipped_again(bench: Bench) -> None:
    (bench.run.path / "code" / "pkg" / "train.py").write_text("other")
    bench.mirror.ship()
    assert bench.shell.asked.count("unpack") == 1
    assert (bench.there.path / "code" / "pkg" / "train.py").read_text() == "print(1)\n"


def test_data_that_is_there_is_not_shipped_with_a_new_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "data.bin").write_bytes(os.urandom(5000))
    there = data_at_site(PurePosixPath(bench.state), "e" * 64, tmp_path / "data.bin")
    Path(there).parent.mkdir(parents=True)
    Path(there).write_bytes(b"as it was")
    bench.mirror.ship({there: tmp_path / "data.bin"})
    assert Path(there).read_bytes() == b"as it was"
    assert bench.there.journal.is_dir()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_shipment_cut_anywhere_leaves_nothing_and_goes_through_the_next_time(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    bench = Bench(tmp_path_factory.mktemp("ship"))
    bench.shell.cuts = [("up", int(share * 12_000))]
    with pytest.raises(UnreachableError):
        bench.mirror.ship()
    assert not bench.there.path.exists()
    assert not list(bench.state.glob("runs/.*"))
    bench.mirror.ship()
    assert (bench.there.path / "code" / "pkg" / "train.py").exists()


def test_a_lost_answer_to_a_shipment_makes_no_second_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.shell.cuts = [("down", 0)]
    with pytest.raises(UnreachableError):
        bench.mirror.ship()
    bench.mirror.ship()
    assert [path.name for path in (bench.state / "runs").iterdir()] == [RUN]


def test_own_words_go_there_and_only_those(bench: Bench) -> None:
    bench.says("supervisor", "theirs")
    bench.mirror.pull()
    bench.says("client-here-1-2", "mine", "also mine", where=bench.run)
    before = (bench.there.journal / "supervisor.wj").stat()
    bench.mirror.push()
    assert bench.heard(bench.there) == {"supervisor": ["theirs"], "client-here-1-2": ["mine", "also mine"]}
    after = (bench.there.journal / "supervisor.wj").stat()
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def test_a_pulled_file_of_another_client_is_not_pushed(bench: Bench) -> None:
    bench.says("client-elsewhere-1-2", "theirs")
    bench.mirror.pull()
    (bench.there.journal / "client-elsewhere-1-2.wj").unlink()
    bench.another().push()
    assert bench.heard(bench.there) == {}


def test_a_client_that_comes_later_pushes_what_an_earlier_one_could_not(bench: Bench) -> None:
    bench.says("client-here-1-2", "one", where=bench.run)
    bench.mirror.push()
    bench.says("client-here-1-2", "two", where=bench.run)
    bench.another().push()
    assert bench.heard(bench.there) == {"client-here-1-2": ["one", "two"]}


def test_a_push_in_many_turns_arrives_in_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "LIMIT_BYTES", 300)
    messages = [f"message {number}" for number in range(30)]
    bench.says("client-here-1-2", *messages, where=bench.run)
    bench.mirror.push()
    assert bench.heard(bench.there) == {"client-here-1-2": messages}
    assert bench.shell.asked.count("sync") > 5


def test_a_journal_that_is_not_ours_any_more_is_not_written_over(bench: Bench) -> None:
    bench.says("client-here-1-2", "one", where=bench.run)
    (bench.there.journal / "client-here-1-2.wj").write_bytes(b"x")
    bench.mirror._at_site = {}
    with pytest.raises(PreconditionError, match="was changed after it was written") as caught:
        bench.mirror.push()
    assert caught.value.code == "run-damaged"
    assert (bench.there.journal / "client-here-1-2.wj").read_bytes() == b"x"


def test_words_and_prints_of_others_come_here(bench: Bench) -> None:
    bench.says("supervisor", "a", "b")
    bench.prints(b"hello\nwor")
    assert bench.mirror.pull(logs=True)
    assert bench.heard() == {"supervisor": ["a", "b"]}
    assert bench.printed() == b"hello\nwor"
    assert not bench.mirror.pull(logs=True)
    bench.prints(b"ld\n")
    bench.says("supervisor", "c")
    assert bench.mirror.pull(logs=True)
    assert bench.heard() == {"supervisor": ["a", "b", "c"]}
    assert bench.printed() == b"hello\nworld\n"


def test_without_logs_only_the_journal_comes(bench: Bench) -> None:
    bench.says("supervisor", "a")
    bench.prints(b"hello\n")
    bench.mirror.pull()
    assert bench.heard() == {"supervisor": ["a"]}
    assert not list(bench.run.logs.iterdir())


def test_a_record_that_is_being_written_is_not_pulled(bench: Bench) -> None:
    bench.says("supervisor", "a")
    path = bench.there.journal / "supervisor.wj"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    bench.mirror.pull()
    assert (bench.run.journal / "supervisor.wj").read_bytes() == whole
    path.write_bytes(whole)  # its writer cut it and goes on
    bench.says("supervisor", "b")
    bench.mirror.pull()
    assert bench.heard() == {"supervisor": ["a", "b"]}


def test_a_damaged_line_among_whole_ones_comes_as_it_is(bench: Bench) -> None:
    bench.says("supervisor", "a")
    path = bench.there.journal / "supervisor.wj"
    content = path.read_bytes() + b"damage\n"
    path.write_bytes(content)
    bench.mirror.pull()
    assert (bench.run.journal / "supervisor.wj").read_bytes() == content[: -len(b"damage\n")]
    path.write_bytes(content + content[: -len(b"damage\n")])
    bench.mirror.pull()
    assert (bench.run.journal / "supervisor.wj").read_bytes() == path.read_bytes()


def test_a_pull_in_many_turns_brings_everything(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "LIMIT_BYTES", 400)
    messages = [f"message {number}" for number in range(30)]
    bench.says("supervisor", *messages)
    bench.prints(b"x" * 3000)
    bench.mirror.pull(logs=True)
    assert bench.heard() == {"supervisor": messages}
    assert bench.printed() == b"x" * 3000


def test_indexes_come_in_whole_records(bench: Bench) -> None:
    bench.prints(b"hello\n")
    index = bench.there.logs / "1" / "train" / "0.log.idx"
    records = [IndexRecord(0, 0, 1).pack(), IndexRecord(3, 1, 2).pack()]
    index.write_bytes(records[0] + records[1][:7])
    bench.mirror.pull(logs=True)
    copy = bench.run.logs / "1" / "train" / "0.log.idx"
    assert copy.read_bytes() == records[0]
    index.write_bytes(b"".join(records))
    bench.mirror.pull(logs=True)
    assert copy.read_bytes() == b"".join(records)


def test_logs_of_an_attempt_that_has_a_successor_are_left_alone_until_the_last_look(bench: Bench) -> None:
    bench.prints(b"first\n", attempt=1)
    bench.prints(b"second\n", attempt=2)
    for _ in range(2):
        bench.mirror.pull(logs=True)
    bench.prints(b"late\n", attempt=1)
    bench.mirror.pull(logs=True)
    assert bench.printed(1) == b"first\n"
    bench.mirror.pull(logs=True, is_last=True)
    assert bench.printed(1) == b"first\nlate\n"


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_connection_that_breaks_anywhere_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bench = Bench(tmp_path_factory.mktemp("cuts"))
    bench.mirror.ship()
    ours: list[str] = []
    theirs: list[str] = []
    printed = b""
    for number in range(data.draw(st.integers(1, 6))):
        ours.append(f"ours {number}")
        theirs.append(f"theirs {number}")
        printed += b"line %d\n" % number
        bench.says("client-here-1-2", ours[-1], where=bench.run)
        bench.says("supervisor", theirs[-1])
        bench.prints(b"line %d\n" % number)
        bench.shell.cuts = data.draw(
            st.lists(st.tuples(st.sampled_from(["up", "down", ""]), st.integers(0, 1500)), max_size=3)
        )
        side = bench.mirror if data.draw(st.booleans()) else bench.another()
        try:
            side.pull(logs=True)
            side.push()
        except UnreachableError:
            pass
    bench.shell.cuts = []
    last = bench.another()
    last.pull(logs=True)
    last.push()
    for where in (bench.run, bench.there):
        assert bench.heard(where) == {"client-here-1-2": ours, "supervisor": theirs}
    assert bench.printed() == printed


def test_what_a_crash_here_left_half_written_is_mended(bench: Bench) -> None:
    bench.says("supervisor", "a", "b")
    bench.mirror.pull()
    copy = bench.run.journal / "supervisor.wj"
    whole = copy.read_bytes()
    copy.write_bytes(whole[: len(whole) // 2 + 10] + b"\0" * 40)
    bench.another().pull()
    assert copy.read_bytes() == whole


def test_own_words_that_were_lost_here_come_back(bench: Bench) -> None:
    bench.says("client-here-1-2", "one", "two", where=bench.run)
    bench.mirror.push()
    copy = bench.run.journal / "client-here-1-2.wj"
    whole = copy.read_bytes()
    copy.write_bytes(whole[:20])
    later = bench.another()
    later.pull()
    later.pull()
    assert copy.read_bytes() == whole


def test_small_files_are_put_whole(bench: Bench) -> None:
    folder = bench.run.jobs / "train-2"
    folder.mkdir()
    (folder / "job.json").write_text("{1}")
    (folder / "job.sbatch").write_text("#!/bin/bash\n")
    bench.mirror.put([folder / "job.json", folder / "job.sbatch"])
    assert (bench.there.jobs / "train-2" / "job.json").read_text() == "{1}"
    assert (bench.there.jobs / "train-2" / "job.sbatch").read_text() == "#!/bin/bash\n"


def test_a_job_is_sent_with_our_words_and_a_link_that_began_is_heard_of(bench: Bench) -> None:
    folder = bench.run.jobs / "train-2"
    folder.mkdir()
    for name in ("job.json", "job.sbatch", "submit.lock", "submitted.json"):
        (folder / name).write_text(name)
    bench.says("client-here-1-2", "intended", where=bench.run)
    (bench.there.jobs / "train-1" / "link-1.json").write_text('{"id": "7"}')
    bench.mirror.send_job(folder, PurePosixPath(bench.there.jobs / "train-2"))
    assert sorted(path.name for path in (bench.there.jobs / "train-2").iterdir()) == ["job.json", "job.sbatch"]
    assert bench.heard(bench.there) == {"client-here-1-2": ["intended"]}
    assert (bench.run.jobs / "train-1" / "link-1.json").read_text() == '{"id": "7"}'


def test_secrets_are_for_their_owner_alone_and_are_taken_back(bench: Bench) -> None:
    path = Path(bench.mirror.deliver({"TOKEN": b"value"}))
    assert path == bench.state / "delivery" / "run-abcd2345.json"
    assert read_delivery(path) == {"TOKEN": b"value"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    bench.another().remove_delivery()
    assert not path.exists()
    bench.shell.asked.clear()
    bench.another().remove_delivery()
    assert bench.shell.asked == []


def test_secrets_whose_taking_back_failed_are_taken_back_later(bench: Bench) -> None:
    path = Path(bench.mirror.deliver({"TOKEN": b"value"}))
    bench.shell.cuts = [("up", 10)]
    with pytest.raises(UnreachableError):
        bench.mirror.remove_delivery()
    assert path.exists()
    bench.mirror.remove_delivery()
    assert not path.exists()


def test_secrets_do_not_go_where_others_look(bench: Bench) -> None:
    (bench.state / "delivery").mkdir()
    (bench.state / "delivery").chmod(0o755)
    with pytest.raises(AccessError, match="can be read by other users") as caught:
        bench.mirror.deliver({"TOKEN": b"value"})
    assert caught.value.code == "secret-exposed"


def test_a_run_that_is_gone_there_says_so(bench: Bench) -> None:
    bench.there.journal.rmdir()
    with pytest.raises(NotFoundError, match="no run in") as caught:
        bench.mirror.pull()
    assert caught.value.code == "run-gone-at-site"


def test_the_time_of_the_last_answer_is_known(bench: Bench) -> None:
    assert bench.run.heard_at() == 0.0
    bench.mirror.pull()
    assert bench.run.heard_at() > 0.0


class TestOutputs:
    def test_they_come_whole_with_their_manifest(self, bench: Bench) -> None:
        out = bench.there.out("train")
        (out / "deep").mkdir(parents=True)
        (out / "deep" / "model.bin").write_bytes(os.urandom(20_000))
        (out / "empty").write_bytes(b"")
        os.symlink("deep/model.bin", out / "latest")
        out.with_name("train.manifest.json").write_text("{}")
        folder = bench.mirror.fetch_outputs("train")
        assert folder == bench.run.out("train")
        assert (folder / "deep" / "model.bin").read_bytes() == (out / "deep" / "model.bin").read_bytes()
        assert (folder / "empty").read_bytes() == b""
        assert os.readlink(folder / "latest") == "deep/model.bin"
        assert folder.with_name("train.manifest.json").read_text() == "{}"

    def test_a_break_leaves_no_half_folder_and_the_next_call_goes_on(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("windlass.launcher.remote.fetching._TURN_BYTES", 1000)
        out = bench.there.out("train")
        out.mkdir()
        for number in range(5):
            (out / f"{number}.bin").write_bytes(bytes([number]) * 700)
        bench.shell.cuts = [("", 0), ("", 0), ("", 0), ("down", 100)]
        with pytest.raises(UnreachableError):
            bench.mirror.fetch_outputs("train")
        assert not bench.run.out("train").exists()
        bench.shell.asked.clear()
        folder = bench.mirror.fetch_outputs("train")
        assert [(folder / f"{number}.bin").read_bytes() for number in range(5)] == [bytes([n]) * 700 for n in range(5)]
        assert bench.shell.asked.count("fetch") < 6  # list, the rest, manifest

    def test_a_second_call_brings_what_changed_and_drops_what_went(self, bench: Bench) -> None:
        out = bench.there.out("train")
        out.mkdir()
        for name in ("same", "changed", "gone"):
            (out / name).write_text(name)
        bench.mirror.fetch_outputs("train")
        (out / "changed").write_text("anew")
        (out / "gone").unlink()
        folder = bench.mirror.fetch_outputs("train")
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"same": "same", "changed": "anew"}

    def test_a_task_without_any_is_named(self, bench: Bench) -> None:
        with pytest.raises(NotFoundError, match="no out/train in"):
            bench.mirror.fetch_outputs("train")
