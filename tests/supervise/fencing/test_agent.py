"""A guard with its fencing agent, and a stand-in for a supervisor; a heartbeat process that is stopped stands for a stalled disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from windlass.core.process import ProcessId, descendants, identify, is_alive, send_signal
from windlass.supervise.fencing.fence import FenceState
from windlass.supervise.fencing.heartbeat import HeartbeatProcess, unpack_heartbeats
from windlass.supervise.fencing.process_scan import UserProcessScan
from windlass.supervise.gang.election import Leadership, publish_claim
from windlass.supervise.job import Fencing

FENCING = Fencing(renew_s=0.05, stop_s=0.4, kill_s=60.0, quiet_s=1.0)
USER = """
import sys, time
while True:
    with open(sys.argv[1], "a") as file:
        file.write(".")
    time.sleep(0.01)
"""
DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[1]])
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)


def claim(folder: Path, epoch: int, incarnation: str) -> None:
    assert publish_claim(folder, Leadership(epoch, 0, "node0", "10.0.0.1", 29400, "100:1:boot", incarnation))


class Scene:
    """One replica whose user code writes a dot every 10 ms; its guard is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder / "7.0"
        self.place.mkdir()
        self.dots, self.seen = folder / "dots", folder / "seen"
        self.guard = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, fencing: Fencing = FENCING, program: str = USER) -> None:
        """Start a guard with everything below it, as a job does: in a process of its own with one thread; wait for the code."""
        user = [sys.executable, "-c", program, str(self.dots), USER]
        setting = json.dumps({"folder": str(self.folder), "argv": user, "fencing": asdict(fencing)})
        argv = [sys.executable, "-m", "tests.supervise.fencing_scene", setting]
        self._process = subprocess.Popen(argv, start_new_session=True, cwd=Path(__file__).parents[3])
        self.guard = self._process.pid
        until(self.runs, "the code runs")

    def look(self) -> dict[str, Any]:
        return dict(json.loads(self.seen.read_text())) if self.seen.exists() else {}

    def pid(self, what: str) -> int:
        return int(self.look()[what].partition(":")[0])

    def heartbeat(self) -> int:
        """Process number of the fencing agent's child."""
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            for pid in descendants(self.pid("agent")):
                return pid
            time.sleep(0.01)
        raise AssertionError("there is no heartbeat process")

    def num_dots(self) -> int:
        return self.dots.stat().st_size if self.dots.exists() else 0

    def runs(self) -> bool:
        before = self.num_dots()
        time.sleep(0.1)
        return self.num_dots() > before

    def is_still(self) -> bool:
        before = self.num_dots()
        time.sleep(0.2)
        return self.num_dots() == before

    def is_stopped(self) -> bool:
        """Whether the code is stopped; a busy machine alone can hold it up for long."""
        return Path(f"/proc/{self.pid('user')}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def state(self) -> FenceState:
        return FenceState(self.look()["state"])

    def stall(self) -> int:
        """Stop the heartbeat process; returns its number, so that it can be let go."""
        heartbeat = self.heartbeat()
        os.kill(heartbeat, signal.SIGSTOP)
        return heartbeat

    def end(self) -> int:
        """End the replica; returns the guard's exit code."""
        (self.folder / "end").touch()
        return self.wait()

    def wait(self) -> int:
        """Wait for the guard; returns its exit code."""
        assert self._process is not None
        code, self._process = self._process.wait(), None
        return code

    def close(self) -> None:
        if self._process is not None:
            for pid in (self.guard, *descendants(self.guard)):
                send_signal(pid, signal.SIGKILL)
            self.wait()
        for what in ("user", "supervisor", "agent"):
            text = self.look().get(what, "None")
            if text != "None" and is_alive(ProcessId.parse(text)):
                send_signal(self.pid(what), signal.SIGKILL)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.mark.system
def test_a_stall_stops_the_code_and_its_end_lets_it_go_on(scene: Scene) -> None:
    scene.start()
    heartbeat = scene.stall()
    until(scene.is_stopped, "the code is stopped")
    until(lambda: scene.state() is FenceState.STOPPED, "the supervisor hears of it")
    os.kill(heartbeat, signal.SIGCONT)
    until(scene.runs, "the code goes on")
    until(lambda: scene.state() is FenceState.FREE, "it is free again")
    assert scene.look()["lost_s"] > FENCING.stop_s
    assert scene.look()["why"] == ""


@pytest.mark.system
def test_a_long_stall_kills_the_code_with_what_it_detached(scene: Scene) -> None:
    scene.start(Fencing(renew_s=0.05, stop_s=0.3, kill_s=0.6, quiet_s=1.0), DAEMON)
    scene.stall()
    until(lambda: scene.state() is FenceState.GONE, "the code is killed")
    until(scene.is_still, "nothing of the user's lives")
    why = "the shared file system was gone for 1 s"
    until(lambda: scene.look()["why"] == why, "the supervisor knows why")  # stopped code is still before it is killed
    assert is_alive(ProcessId.parse(scene.look()["supervisor"]))


@pytest.mark.system
def test_claims_of_the_same_and_of_earlier_starts_are_no_reason(scene: Scene) -> None:
    claim(scene.folder, 1, "6.0")
    scene.start()
    claim(scene.folder, 2, "7.0")
    claim(scene.folder, 3, "7.0")
    time.sleep(0.3)
    until(scene.runs, "it goes on")
    until(lambda: scene.state() is FenceState.FREE, "it is free")


@pytest.mark.system
def test_a_later_start_of_the_job_kills(scene: Scene) -> None:
    claim(scene.folder, 1, "7.0")
    scene.start()
    claim(scene.folder, 2, "8.0")
    until(lambda: scene.look()["why"] != "", "the code is killed")
    assert scene.look()["why"] == "a later start of this job took over"
    until(scene.is_still, "nothing of the user's lives")


@pytest.mark.system
def test_a_stopped_replica_that_was_superseded_meanwhile_never_goes_on(scene: Scene) -> None:
    claim(scene.folder, 1, "7.0")
    scene.start()
    heartbeat = scene.stall()
    until(scene.is_stopped, "the code is stopped")
    claim(scene.folder, 2, "8.0")
    before = scene.num_dots()
    os.kill(heartbeat, signal.SIGCONT)
    until(lambda: scene.look()["why"] != "", "the code is killed")
    assert scene.num_dots() == before


@pytest.mark.system
def test_a_heartbeat_process_that_dies_has_a_successor(scene: Scene) -> None:
    scene.start()
    heartbeat = scene.heartbeat()
    os.kill(heartbeat, signal.SIGKILL)
    until(lambda: scene.heartbeat() != heartbeat, "there is another heartbeat process")
    file = scene.place / "heartbeat-0"
    before = int(file.read_bytes())
    until(lambda: int(file.read_bytes()) > before, "the heartbeat continues")
    until(lambda: scene.state() is FenceState.FREE, "it is free")


@pytest.mark.system
def test_a_fencing_agent_that_dies_has_a_successor_which_knows_what_it_knew(scene: Scene) -> None:
    scene.start()
    heartbeat, agent = scene.stall(), scene.pid("agent")
    until(scene.is_stopped, "the code is stopped")
    os.kill(agent, signal.SIGKILL)
    until(lambda: scene.look()["agent"].partition(":")[0] not in ("None", str(agent)), "there is another fencing agent")
    until(scene.runs, "the code goes on, since the new fencing agent's heartbeat process is not stopped")
    until(lambda: identify(heartbeat) is None, "the old heartbeat process died with its fencing agent")


@pytest.mark.system
def test_as_long_as_the_supervisor_lives_nothing_is_killed(scene: Scene) -> None:
    scene.start()
    user = ProcessId.parse(scene.look()["user"])
    os.kill(scene.guard, signal.SIGKILL)
    scene.wait()
    time.sleep(0.2)
    until(scene.runs, "the code goes on")
    heartbeat = scene.stall()
    until(scene.is_stopped, "the code is stopped though its guard is dead")
    os.kill(heartbeat, signal.SIGCONT)
    until(scene.runs, "the code goes on")
    agent = ProcessId.parse(scene.look()["agent"])
    os.kill(scene.pid("supervisor"), signal.SIGKILL)
    until(lambda: not is_alive(user), "the code ends with the last one who watched it")
    until(lambda: not is_alive(agent), "the fencing agent leaves")


@pytest.mark.system
def test_notices_are_not_for_the_fencing_agent(scene: Scene) -> None:
    scene.start()
    agent = scene.pid("agent")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(agent, number)
        os.kill(scene.heartbeat(), number)
    time.sleep(0.2)
    assert scene.pid("agent") == agent
    until(scene.runs, "the code goes on")


@pytest.mark.system
def test_nothing_stays_when_the_replica_is_over(scene: Scene) -> None:
    scene.start()
    ours = [identify(pid) for pid in (scene.pid("agent"), scene.heartbeat())]
    user = scene.pid("user")
    os.kill(user, signal.SIGKILL)
    assert scene.end() == 0
    until(
        lambda: not any(found is not None and is_alive(found) for found in ours),
        "fencing agent and heartbeat process are gone",
    )


@pytest.mark.system
def test_the_fencing_agent_holds_nothing_of_the_shared_file_system(scene: Scene) -> None:
    scene.start()
    agent = Path(f"/proc/{scene.pid('agent')}")
    assert os.readlink(agent / "cwd") == "/"
    held = {os.readlink(path) for path in (agent / "fd").iterdir()}
    assert not [
        name for name in held if name.startswith("/") and name not in ("/dev/null", "/memfd:windlass-shared (deleted)")
    ]


def test_the_tree_of_another_guard_is_not_this_ones(tmp_path: Path) -> None:
    """Its name tells, which a process has of itself; what it runs is spared with it."""
    rename = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)\n"
    body = (
        rename
        + "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nopen(sys.argv[2], 'w')\n"
    )
    program = body + "import time; time.sleep(600)"
    wards = UserProcessScan(os.getsid(0), "windlass-abc123")
    processes = []
    for name in ("windlass-abc123", "windlass-fffffe"):
        argv = [sys.executable, "-c", program, name, str(tmp_path / name)]
        processes.append(subprocess.Popen(argv, start_new_session=True))
    try:
        until(lambda: len(list(tmp_path.iterdir())) == 2, "both run")
        found = {entry.pid for entry in wards.below([os.getpid()])}
        other, nested = processes
        assert other.pid not in found
        assert not found & set(descendants(other.pid))
        assert {nested.pid, *descendants(nested.pid)} <= found
    finally:
        for process in processes:
            for pid in (*descendants(process.pid), process.pid):
                send_signal(pid, signal.SIGKILL)
            process.wait()


@pytest.mark.system
def test_code_that_was_suspended_with_its_fencing_agent_goes_on(scene: Scene) -> None:
    """As a scheduler suspends a job: all of it at once, for longer than silence may last."""
    scene.start(Fencing(renew_s=0.05, stop_s=2.5, kill_s=6.0, quiet_s=7.0))
    user = ProcessId.parse(scene.look()["user"])
    ours = [scene.pid("agent"), scene.heartbeat(), user.pid]
    for pid in ours:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(7.0)
    os.kill(ours[0], signal.SIGCONT)
    until(lambda: scene.look()["state"] == FenceState.STOPPED, "it is stopped first")
    os.kill(user.pid, signal.SIGCONT)
    os.kill(ours[1], signal.SIGCONT)
    until(scene.runs, "it goes on")
    assert is_alive(user)
    assert scene.look()["why"] == ""


class Told:
    """A heartbeat process whose pipe is read by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "7.0").mkdir(parents=True)
        self.read, out = os.pipe()
        os.set_blocking(self.read, False)
        self.heartbeat = HeartbeatProcess(folder, 0, "7.0", 5.0, out)

    def turn(self, began: float) -> list[tuple[float, bool]]:
        self.heartbeat.turn(began)
        try:
            return unpack_heartbeats(os.read(self.read, 900))
        except BlockingIOError:
            return []


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "job")


def test_a_turn_leaves_a_heartbeat_that_grows_and_says_when_it_began(told: Told) -> None:
    heartbeat = told.folder / "7.0" / "heartbeat-0"
    assert told.turn(100.0) == [(100.0, False)]
    first = int(heartbeat.read_bytes())
    assert told.turn(105.0) == [(105.0, False)]
    assert int(heartbeat.read_bytes()) == first + 1
    assert HeartbeatProcess(told.folder, 0, "7.0", 5.0, 1).files.counter > first
    assert sorted(os.listdir(told.folder)) == ["7.0"]


def test_a_heartbeat_that_cannot_be_written_is_no_sign_of_life(told: Told) -> None:
    (told.folder / "7.0").rmdir()
    assert told.turn(100.0) == []


def test_a_job_that_is_not_there_any_more_is_not_made_again(told: Told) -> None:
    (told.folder / "7.0").rmdir()
    told.folder.rmdir()
    assert told.turn(100.0) == []
    assert not told.folder.exists()


def test_a_successor_is_told_of_even_where_no_heartbeat_can_be_written(told: Told) -> None:
    claim(told.folder, 1, "7.0")
    claim(told.folder, 2, "8.0")
    (told.folder / "7.0").rmdir()
    assert told.turn(100.0) == [(100.0, True)]


def test_a_leader_of_a_later_job_of_the_task_takes_over(tmp_path: Path) -> None:
    told = Told(tmp_path / "train-2")
    claim(told.folder, 1, "7.0")
    for name in ("train-1", "train-3", "train-2-3"):
        (tmp_path / name).mkdir()
    claim(tmp_path / "train-1", 4, "6.0")
    claim(tmp_path / "train-2-3", 4, "9.0")
    assert told.turn(100.0) == [(100.0, False)]
    claim(tmp_path / "train-3", 1, "8.0")
    assert told.turn(105.0) == [(105.0, True)]
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.name.startswith(".")}
    assert names == set()


def test_folders_of_later_jobs_are_listed_afresh_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(tmp_path / "train-2")
    for name in ("train-1", "train-3"):
        (tmp_path / name).mkdir()
    made: list[Path] = []
    mkdir = os.mkdir

    def count(path: str) -> None:
        made.append(Path(path).parent)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", count)
    told.turn(100.0)
    assert made == [tmp_path / "train-2", tmp_path, tmp_path / "train-3"]


def test_a_claim_that_cannot_be_read_could_be_anybodys(told: Told) -> None:
    (told.folder / "leader-3.json").write_text("{")
    assert told.turn(100.0) == []


def test_a_listing_after_a_silence_is_a_fresh_one(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    mkdir = os.mkdir

    def count(path: str) -> None:
        made.append(path)
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", count)
    for began, num_made in ((100.0, 1), (105.0, 1), (110.0, 1), (200.0, 2), (205.0, 2)):
        told.turn(began)
        assert len(made) == num_made


@pytest.mark.system
def test_watching_costs_next_to_nothing(scene: Scene) -> None:
    """Loose here, where other work runs: 40 turns may cost what the budget allows for 40 times 5 s, ten times over."""
    scene.start()
    ours = [scene.pid("agent"), scene.heartbeat()]
    before = sum(map(_cpu_s, ours))
    time.sleep(40 * FENCING.renew_s)
    assert sum(map(_cpu_s, ours)) - before < 40 * 5.0 * 0.001 * 10


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9
