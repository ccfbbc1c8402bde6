from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.core.process import ProcessId, identify, is_alive
from windlass.supervise.fencing import guard as guard_module
from windlass.supervise.fencing.guard import FORWARDED, GuardContext, guard, is_gone
from windlass.supervise.fencing.guard_file import guard_path

pytestmark = pytest.mark.system


def run_guard(
    folder: Path, supervise: Callable[[GuardContext], int], meanwhile: Callable[[int], None] = lambda _: None
) -> int:
    """Run a guard in a process of its own; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = guard(folder, 0, supervise)
        finally:
            os._exit(code)
    meanwhile(pid)
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status)


def note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(f"{text}\n")


def wait_for(path: Path, num_lines: int) -> list[str]:
    deadline = time.monotonic() + 120.0
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= num_lines or time.monotonic() > deadline:
            return lines
        time.sleep(0.005)


def test_a_supervisor_that_crashes_at_once_is_given_up_and_its_users_end(tmp_path: Path) -> None:
    def supervise(context: GuardContext) -> int:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        note(tmp_path / "users", str(identify(child.pid)))
        return 70

    assert run_guard(tmp_path, supervise) == 70
    users = (tmp_path / "users").read_text().splitlines()
    assert len(users) == guard_module._MAX_QUICK_RESTARTS + 1
    assert not any(is_alive(ProcessId.parse(user)) for user in users)


def test_a_replica_of_another_container_with_the_same_numbers_shields_nobody(tmp_path: Path) -> None:
    """They began at the same moment, each the first process of its namespace, and write to the same folder."""

    def twin(pid: int) -> str:
        found = identify(pid)
        assert found is not None
        boot, _, namespace = found.world.partition(".")
        return str(replace(found, world=f"{boot}.{int(namespace) + 1}"))

    def supervise(context: GuardContext) -> int:
        twins = {"guard": twin(context.guard_pid), "supervisor": twin(os.getpid())}
        guard_path(tmp_path, 1).write_text(json.dumps(twins))
        (tmp_path / "leader-1.json").write_text('{"rank": 0}')  # so it may have started others
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        note(tmp_path / "users", str(identify(child.pid)))
        return 70

    assert run_guard(tmp_path, supervise) == 70
    users = (tmp_path / "users").read_text().splitlines()
    assert not any(is_alive(ProcessId.parse(user)) for user in users)
    assert not is_gone(tmp_path, 1), "nobody here can know"


def test_a_slow_crash_loop_has_an_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_QUICK_S", 0.0)

    def supervise(context: GuardContext) -> int:
        note(tmp_path / "starts", "")
        return 70

    assert run_guard(tmp_path, supervise) == 70
    assert len((tmp_path / "starts").read_text().splitlines()) == guard_module._MAX_CRASHES + 1


def test_a_killed_supervisor_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_QUICK_S", 0.0)
    monkeypatch.setattr(guard_module, "_MAX_CRASHES", 2)

    def supervise(context: GuardContext) -> int:
        note(tmp_path / "starts", "")
        if len((tmp_path / "starts").read_text().splitlines()) < 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return 3

    assert run_guard(tmp_path, supervise) == 3


def test_a_signal_reaches_a_supervisor_that_is_not_ready_for_it_and_the_next_one(tmp_path: Path) -> None:
    def supervise(context: GuardContext) -> int:
        note(tmp_path / "starts", "")
        number = len((tmp_path / "starts").read_text().splitlines())
        got: list[int] = []
        if number == 1:
            while not (tmp_path / "sent").exists():
                time.sleep(0.005)
        for one in FORWARDED:
            signal.signal(one, lambda number, _: got.append(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        deadline = time.monotonic() + 120.0
        while not got and time.monotonic() < deadline:
            time.sleep(0.005)
        note(tmp_path / "got", f"{number} {got}")
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def send(pid: int) -> None:
        wait_for(tmp_path / "starts", 1)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.05)
        (tmp_path / "sent").touch()

    number = int(signal.SIGUSR1)
    assert run_guard(tmp_path, supervise, send) == 0
    assert (tmp_path / "got").read_text() == f"1 [{number}]\n2 [{number}]\n"


def test_a_signal_to_a_supervisor_that_is_gone_is_no_error(tmp_path: Path) -> None:
    notices = guard_module._forward_signals()
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        notices.forward_to(pid)
        notices.receive(signal.SIGUSR1)
    finally:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_guard_that_cannot_be_alone_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(PreconditionError, match=r"guard-0\.lock has no file locks") as caught:
        guard(tmp_path, 0, lambda _: 0)
    assert caught.value.code == "no-file-locks"
