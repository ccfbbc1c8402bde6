"""A mirror over real ssh, with the real zipapp at the other end; what may break there is broken."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.lab.hosts import Hosts, wait_until
from windlass.backends.site_shell import LocalShell, SshShell
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.launcher.remote import client
from windlass.launcher.remote.mirror import Mirror
from windlass.record.journal import JournalWriter, read_journal
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.supervise.archive import ensure_archive

RUN = "run-abcd2345"


@pytest.fixture(autouse=True)
def _hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_QUIET_S", 0.0)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_archive(tmp_path_factory.mktemp("archives"))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = create(Home(tmp_path / "home"), RUN, {"plan.json": b"{}", "places.json": b"{}"})
    run.code.mkdir()
    (run.code / "train.py").write_text("print(1)\n")
    return run


def says(run: RunFolder, writer: str, *messages: str) -> None:
    pen = JournalWriter(run.journal, writer, SystemClock())
    for message in messages:
        pen.append("note", task="", message=message)
    pen.close()


def heard(run: RunFolder) -> list[tuple[str, object]]:
    return sorted((record.writer, record.data["message"]) for record in read_journal(run.journal))


def root(folder: Path) -> PurePosixPath:
    return PurePosixPath(folder) / "windlass" / "runs" / RUN


def fake_python(folder: Path, script: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def cuts(hosts: Hosts, is_time: Callable[[], bool]) -> threading.Thread:
    """Unplugs h2 at some moment."""

    def cut() -> None:
        wait_until(is_time, "the moment to cut")
        hosts.cut("h2")

    cutter = threading.Thread(target=cut)
    cutter.start()
    return cutter


class TestFirstContact:
    """The site is a folder of this machine, reached with real processes."""

    def mirror(self, run: RunFolder, folder: Path, archive: Path, python: str = sys.executable) -> Mirror:
        return Mirror(run, root(folder), LocalShell(), archive=archive, python=python)

    def test_the_zipapp_goes_there_once_and_does_the_rest(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        mirror = self.mirror(run, tmp_path / "site", archive)
        mirror.ship()
        there = RunFolder(Path(mirror.root))
        says(there, "supervisor", "hello")
        says(run, "client-here-1-2", "stop")
        mirror.push()
        mirror.pull(logs=True)
        assert heard(run) == heard(there) == [("client-here-1-2", "stop"), ("supervisor", "hello")]
        held = Path(mirror.transport.archive_at_site)
        assert held.read_bytes() == archive.read_bytes()
        assert [path.name for path in held.parent.iterdir()] == [archive.name]
        assert (tmp_path / "site" / "windlass" / "runs").stat().st_mode & 0o077 == 0

    def test_what_is_over_goes_and_what_is_not_stays(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        mirror = self.mirror(run, tmp_path / "site", archive)
        mirror.ship()
        there = RunFolder(Path(mirror.root))
        remove = {"what": "run", "root": str(mirror.root)}
        with pytest.raises(PreconditionError, match="is active at the site") as caught:
            mirror.transport.request("clear", remove)
        assert caught.value.code == "run-active"
        pen = JournalWriter(there.journal, "supervisor", SystemClock())
        pen.append("task-ended", task="main", job=1, attempt=1, verdict="succeeded", cause="ok", message="")
        pen.close()
        answer, _ = mirror.transport.request("clear", remove)
        assert answer["bytes"] > 0
        assert list(there.path.parent.iterdir()) == []
        assert mirror.transport.request("clear", remove) == ({"bytes": 0}, [])

    def test_the_zipapp_of_another_client_stays(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        mirror = self.mirror(run, tmp_path / "site", archive)
        assert isinstance(mirror.transport, client.RemoteClient)
        inodes = set()
        for _ in range(2):
            mirror.transport.ensure_archive()
            inodes.add(Path(mirror.transport.archive_at_site).stat().st_ino)
        assert len(inodes) == 1
        assert len(list(Path(mirror.transport.archive_at_site).parent.iterdir())) == 1

    def test_a_zipapp_that_was_damaged_there_is_replaced(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        mirror = self.mirror(run, tmp_path / "site", archive)
        held = Path(mirror.transport.archive_at_site)
        held.parent.mkdir(parents=True)
        held.write_bytes(archive.read_bytes()[:5000])
        mirror.ship()
        assert held.read_bytes() == archive.read_bytes()
        assert RunFolder(Path(mirror.root)).journal.is_dir()

    def test_a_python_that_is_too_old_is_named(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        python = fake_python(tmp_path, "echo Python 3.8.10")
        with pytest.raises(PreconditionError, match=r"is Python 3\.8; windlass needs 3\.9 or newer") as caught:
            self.mirror(run, tmp_path / "site", archive, python).ship()
        assert (caught.value.code, "env.python" in caught.value.hint) == ("site-python", True)
        assert not (tmp_path / "site").exists()

    def test_a_python_that_is_not_there_is_named(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        with pytest.raises(PreconditionError, match=r"cannot run `/no/python3`: .*No such file") as caught:
            self.mirror(run, tmp_path / "site", archive, "/no/python3").ship()
        assert caught.value.code == "site-python"

    def test_a_site_that_speaks_nonsense_is_named(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        python = fake_python(
            tmp_path, "cat >/dev/null; case $* in *version_info*) echo 3.11; exit; esac; echo trouble >&2; exit 9"
        )
        with pytest.raises(PreconditionError, match="failed to store the zipapp: trouble") as caught:
            self.mirror(run, tmp_path / "site", archive, python).ship()
        assert caught.value.code == "invalid-reply"

    def test_a_shared_folder_that_cannot_be_is_named(self, run: RunFolder, tmp_path: Path, archive: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(PreconditionError, match=r"this machine: .*/file.*: Not a directory"):
            self.mirror(run, tmp_path / "file", archive).ship()


@pytest.mark.system
class TestOverSsh:
    @pytest.fixture
    def shell(self, hosts: Hosts) -> Iterator[SshShell]:
        shell = SshShell("h2", config=hosts.ssh_config, alive_s=2, connect_timeout_s=8)
        yield shell
        hosts.join("h2")
        shell.close()

    @pytest.fixture
    def disk(self, hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
        """A disk of 4 MiB that only h2 has."""
        path = tmp_path / "disk"
        path.mkdir()
        hosts.run("h2", ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "disk", str(path)])
        yield path
        hosts.run("h2", ["umount", str(path)])

    def mirror(self, run: RunFolder, folder: Path, shell: SshShell, archive: Path) -> Mirror:
        return Mirror(run, root(folder), shell, archive=archive, python=sys.executable)

    def test_a_run_goes_there_and_its_words_come_back(
        self, run: RunFolder, shell: SshShell, disk: Path, hosts: Hosts, archive: Path
    ) -> None:
        mirror = self.mirror(run, disk, shell, archive)
        mirror.ship()
        says(run, "client-here-1-2", "one", "two")
        mirror.push()
        names = hosts.run("h2", ["find", str(mirror.root), "-type", "f"]).stdout.split()
        assert sorted(Path(name).relative_to(mirror.root).as_posix() for name in names) == [
            "code/train.py",
            "journal/client-here-1-2.wj",
            "places.json",
            "plan.json",
        ]
        hosts.run(
            "h2",
            [
                "sh",
                "-c",
                f"cd {mirror.root} && mkdir -p logs/1/train out/train && echo hi | tee logs/1/train/0.log >out/train/a",
            ],
        )
        mirror.pull(logs=True)
        assert (run.logs / "1" / "train" / "0.log").read_text() == "hi\n"
        assert (mirror.fetch_outputs("train") / "a").read_text() == "hi\n"

    def test_a_full_disk_is_named_and_nothing_is_there_in_part(
        self, run: RunFolder, shell: SshShell, disk: Path, hosts: Hosts, archive: Path
    ) -> None:
        (run.code / "big").write_bytes(os.urandom(6 << 20))
        mirror = self.mirror(run, disk, shell, archive)
        with pytest.raises(PreconditionError, match="No space left on device") as caught:
            mirror.ship()
        assert caught.value.code == "disk-full"
        assert hosts.run("h2", ["ls", "-A", str(mirror.root.parent)]).stdout == ""
        (run.code / "big").unlink()
        mirror.ship()
        hosts.run("h2", ["sh", "-c", f"head -c 9000000 /dev/zero >{disk}/filler || true"])
        says(run, "client-here-1-2", "x" * 20_000)
        with pytest.raises(PreconditionError) as caught:
            mirror.push()
        assert caught.value.code == "disk-full"
        hosts.run("h2", ["rm", f"{disk}/filler"])
        mirror.push()
        found = hosts.run("h2", ["cat", f"{mirror.root}/journal/client-here-1-2.wj"]).stdout
        assert found == (run.journal / "client-here-1-2.wj").read_text()

    def test_a_disk_that_is_full_from_the_start_takes_no_zipapp(
        self, run: RunFolder, shell: SshShell, disk: Path, hosts: Hosts, archive: Path
    ) -> None:
        hosts.run("h2", ["sh", "-c", f"head -c 9000000 /dev/zero >{disk}/filler || true"])
        with pytest.raises(PreconditionError, match=r"h2: cannot write .*: No space left on device") as caught:
            self.mirror(run, disk, shell, archive).ship()
        assert caught.value.code == "disk-full"
        assert hosts.run("h2", ["find", str(disk), "-name", "*.part"]).stdout == ""

    def test_a_shared_folder_that_cannot_be_written_is_named(
        self, run: RunFolder, shell: SshShell, disk: Path, hosts: Hosts, archive: Path
    ) -> None:
        hosts.run("h2", ["mount", "-o", "remount,ro", str(disk)])
        with pytest.raises(PreconditionError, match=r"h2: no permission for .*: Read-only file system") as caught:
            self.mirror(run, disk, shell, archive).ship()
        assert (caught.value.code, "fs.shared" in caught.value.hint) == ("site-broken", True)

    def test_a_shipment_that_is_cut_off_leaves_nothing_and_goes_through_later(
        self, run: RunFolder, shell: SshShell, hosts: Hosts, tmp_path: Path, archive: Path
    ) -> None:
        (run.code / "big").write_bytes(os.urandom(40 << 20))
        mirror = self.mirror(run, tmp_path / "site", shell, archive)
        assert isinstance(mirror.transport, client.RemoteClient)
        mirror.transport.ensure_archive()
        parts = Path(mirror.root).parent
        cutter = cuts(hosts, lambda: any(parts.glob(".*")))
        with pytest.raises(UnreachableError, match="cannot reach h2"):
            mirror.ship()
        cutter.join()
        assert not Path(mirror.root).exists()
        hosts.join("h2")
        mirror.ship()
        assert (Path(mirror.root) / "code" / "big").stat().st_size == 40 << 20
        wait_until(lambda: [path.name for path in parts.iterdir()] == [RUN], "the other end to see the break")

    def test_words_that_were_cut_off_arrive_once(
        self, run: RunFolder, shell: SshShell, hosts: Hosts, tmp_path: Path, archive: Path
    ) -> None:
        mirror = self.mirror(run, tmp_path / "site", shell, archive)
        mirror.ship()
        there = RunFolder(Path(mirror.root))
        says(run, "client-here-1-2", *("x" * 100_000 for _ in range(100)))
        says(there, "supervisor", *("y" * 100_000 for _ in range(100)))
        ours = there.journal / "client-here-1-2.wj"
        for action, file in ((mirror.push, ours), (mirror.pull, run.journal / "supervisor.wj")):
            cutter = cuts(hosts, file.exists)
            with pytest.raises(UnreachableError, match="cannot reach h2"):
                action()
            cutter.join()
            hosts.join("h2")
        later = self.mirror(run, Path(mirror.state).parent, shell, archive)
        later.push()
        later.pull()
        for name in ("client-here-1-2.wj", "supervisor.wj"):
            assert (run.journal / name).read_bytes() == (there.journal / name).read_bytes()
        assert len(heard(run)) == 200
