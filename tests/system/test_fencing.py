"""A replica of a scheduler's job whose shared file system stalls: the run lies on a disk that can be frozen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.stage import PYTHON, living, until
from windlass.core.clock import SystemClock
from windlass.core.process import ProcessId, descendants, is_alive, send_signal
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import End, RunFacts, State, fold
from windlass.supervise.gang.election import Leadership, publish_claim
from windlass.supervise.job import Fencing, JobDocument, JobPaths, ReplicaCommand, SiteSettings, TaskSettings

pytestmark = pytest.mark.system

TOKEN = f"fencedtoken{os.getpid()}"
USER = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1] + ".enough"):
    with open(sys.argv[1], "a") as file:
        file.write(".")
    print(number, flush=True)
    number += 1
    time.sleep(0.02)
"""
CLAIM = """
import json, sys
from pathlib import Path
from windlass.supervise.gang.election import Leadership, publish_claim
publish_claim(Path(sys.argv[1]), Leadership(*json.loads(sys.argv[2])))
"""
ENTRY = "import sys; from windlass.supervise.main import main; sys.exit(main(['link', sys.argv[1], '1']))"


class Disk:
    """A small file system of its own that can be frozen: writers hang in the kernel, readers do not."""

    def __init__(self, folder: Path) -> None:
        self.path, self._image = folder / "disk", folder / "image"
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)
        self._is_frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "-f", str(self.path)], check=True)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            subprocess.run(["fsfreeze", "-u", str(self.path)], check=True)
            self._is_frozen = False

    def close(self) -> None:
        self.thaw()
        until(lambda: subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0, "unmounted")


class Link:
    """Link 1 of a job with one replica, as a scheduler would start it; its code writes dots outside the disk until they are enough."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.disk, self.dots = disk, folder / "dots"
        self.run_dir = disk.path / "run"
        self.job_folder = self.run_dir / "jobs" / "main-1"
        for path in (self.job_folder, self.run_dir / "journal"):
            path.mkdir(parents=True)
        self._cwd = folder
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, fencing: Fencing) -> None:
        job = JobDocument(
            run="r",
            task="main",
            job=1,
            token=TOKEN,
            paths=JobPaths(
                str(self.run_dir), out=str(self.run_dir / "out"), checkpoints=str(self.run_dir / "checkpoints")
            ),
            command=ReplicaCommand((PYTHON, "-c", USER, str(self.dots)), cwd=str(self._cwd)),
            settings=TaskSettings(interrupted=0),
            site=SiteSettings(fencing=fencing),
        )
        (self.job_folder / "job.json").write_text(json.dumps(job.to_data()))
        client = JournalWriter(self.run_dir / "journal", "client", SystemClock())
        client.append(events.JOB_INTENDED, task="main", job=1, token=TOKEN, backend="local", resets_budgets=False)
        client.close()  # what is held open cannot be unmounted
        env = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "TMPDIR": str(self._cwd)}
        argv = [sys.executable, "-c", ENTRY, str(self.job_folder)]
        self._guard = subprocess.Popen(argv, env=env, start_new_session=True)
        until(lambda: self.num_dots() > 2, "the code runs")

    def num_dots(self) -> int:
        return self.dots.stat().st_size if self.dots.exists() else 0

    def goes_on(self) -> None:
        """Wait until the code has written more than it has now."""
        before = self.num_dots()
        until(lambda: self.num_dots() > before, "the code goes on")

    def is_still(self) -> bool:
        """Whether the code is stopped; a busy machine alone can hold it up for long."""
        return state_of(self.user().pid) == "T"

    def leave(self, *, has_enough: bool = False) -> int:
        """Wait until the replica is over, by itself or since it has enough dots; returns what its guard left with."""
        assert self._guard is not None
        if has_enough:
            self.dots.with_name(f"{self.dots.name}.enough").touch()
        return self._guard.wait(300)

    def facts(self) -> RunFacts:
        return fold(read_journal(self.run_dir / "journal"))

    def ends(self) -> list[End]:
        attempts = self.facts().task("main").attempts
        return [end for number in sorted(attempts) if (end := attempts[number].replicas[0].end) is not None]

    def log(self) -> str:
        return (self.run_dir / "logs" / "1" / "main" / "0.log").read_text()

    def user(self) -> ProcessId:
        return ProcessId.parse(self.facts().task("main").attempts[1].replicas[0].process)

    def heartbeat(self) -> int:
        assert self._guard is not None
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in descendants(self._guard.pid)}
        return next(pid for pid, name in names.items() if name == "windlass-beat\n")

    def close(self) -> None:
        self.disk.thaw()
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
        until(lambda: not self._end(), "nothing of the link lives")

    def _end(self) -> dict[int, str]:
        left = living(str(self.job_folder), TOKEN)
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        return left


def state_of(pid: int) -> str:
    """Such as `T` of a stopped process, or `D` of one that waits for a disk; source: proc(5), /proc/pid/stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


@pytest.fixture
def link(tmp_path: Path, home: Path, need: Callable[[str], None]) -> Iterator[Link]:
    need("freezing")
    disk = Disk(tmp_path)
    link = Link(disk, tmp_path)
    try:
        yield link
        link.close()
    finally:
        disk.close()


def test_a_short_stall_changes_nothing(link: Link) -> None:
    link.start(Fencing(renew_s=0.2, stop_s=10.0, kill_s=60.0, quiet_s=12.0))
    link.disk.freeze()
    time.sleep(1.0)
    link.goes_on()  # a stall stops no code that needs no disk
    link.disk.thaw()
    assert link.leave(has_enough=True) == 0
    facts = link.facts().task("main")
    assert facts.state is State.SUCCEEDED
    assert [end.cause for end in link.ends()] == ["ok"]
    assert link.log().split() == [str(number) for number in range(link.num_dots())]


def test_a_stall_stops_the_code_and_its_end_lets_it_go_on(link: Link) -> None:
    link.start(Fencing(renew_s=0.2, stop_s=1.0, kill_s=60.0, quiet_s=1.5))
    link.disk.freeze()
    until(link.is_still, "the code is stopped")
    before = link.num_dots()
    time.sleep(6.0)  # longer than the watchdog lets a stopped process be
    assert link.num_dots() == before
    link.disk.thaw()
    link.goes_on()
    assert link.leave(has_enough=True) == 0
    assert [end.cause for end in link.ends()] == ["ok"]
    assert link.log().split() == [str(number) for number in range(link.num_dots())]


def test_what_the_fencing_agent_stopped_is_not_called_stalled(link: Link) -> None:
    """Here only the heartbeat process is held up: its supervisor sees the stopped code all the time."""
    link.start(Fencing(renew_s=0.2, stop_s=1.0, kill_s=60.0, quiet_s=1.5))
    heartbeat = link.heartbeat()
    os.kill(heartbeat, signal.SIGSTOP)
    until(link.is_still, "the code is stopped")
    time.sleep(7.0)  # longer than the watchdog lets a stopped process be
    os.kill(heartbeat, signal.SIGCONT)
    link.goes_on()
    assert link.leave(has_enough=True) == 0
    assert [end.cause for end in link.ends()] == ["ok"]


def test_a_long_stall_ends_the_code_before_its_end_and_is_named(link: Link) -> None:
    link.start(Fencing(renew_s=0.2, stop_s=0.8, kill_s=2.0, quiet_s=1.5))
    user = link.user()
    link.disk.freeze()
    until(lambda: not is_alive(user), "the code is killed while the disk stalls")
    link.disk.thaw()
    assert link.leave() != 0
    (end,) = link.ends()
    assert (end.cause, end.message) == ("node-lost", "the shared file system was gone for 2 s")
    assert end.tail[-1] == link.log().split()[-1]


def test_a_later_start_of_the_job_ends_this_one(link: Link) -> None:
    link.start(Fencing(renew_s=0.2, stop_s=10.0, kill_s=60.0, quiet_s=12.0))
    user = link.user()
    publish_claim(link.job_folder, Leadership(2, 0, "node1", "10.0.0.2", 29400, "100:1:boot", "78.0"))
    until(lambda: not is_alive(user), "the code is killed")
    assert link.leave() != 0
    (end,) = link.ends()
    assert end.cause == "node-lost"
    # the agent kills the code, and the leader, who reads the same claim, ends it by SIGTERM: whichever comes first
    assert end.message in ("a later start of this job took over", "ended by SIGTERM")


def test_what_was_superseded_in_a_stall_never_goes_on(link: Link) -> None:
    link.start(Fencing(renew_s=0.2, stop_s=0.8, kill_s=60.0, quiet_s=1.5))
    user = link.user()
    link.disk.freeze()
    until(link.is_still, "the code is stopped")
    before = link.num_dots()
    claim = [2, 0, "node1", "10.0.0.2", 29400, "100:1:boot", "78.0"]
    successor = subprocess.Popen([sys.executable, "-c", CLAIM, str(link.job_folder), json.dumps(claim)])
    until(lambda: state_of(successor.pid) == "D", "its claim hangs, to be there as soon as anything is")
    link.disk.thaw()
    until(lambda: not is_alive(user), "the code is killed")
    assert successor.wait() == 0
    assert link.num_dots() - before < 100, "at most one turn between the heartbeat and the claim"
    link.leave()
    assert [end.cause for end in link.ends()] == ["node-lost"]
