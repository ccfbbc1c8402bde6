from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core import process
from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.process import (
    ProcessId,
    boot_id,
    descendants,
    find_by_environment,
    identify,
    is_alive,
    is_here,
    run,
    send_signal,
    session_members,
    world_id,
)

WAITING = "import sys; print('there', flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for the end of its input, with a mark in its environment."""
    made = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "A_MARK": f"of-{os.getpid()}"},
    )
    assert made.stdout is not None
    made.stdout.readline()
    yield made
    made.kill()
    made.communicate()


def test_a_command_and_what_it_printed(tmp_path: Path) -> None:
    done = run(["/bin/sh", "-c", "echo $X; pwd >&2; cat; exit 3"], cwd=tmp_path, env={"X": "1"}, stdin=b"in")
    assert (done.code, done.stdout, done.stderr) == (3, "1\nin", f"{tmp_path}\n")
    assert done.argv[0] == "/bin/sh"


def test_a_command_reads_nothing_of_ours_and_may_print_what_is_no_text() -> None:
    done = run(["/bin/sh", "-c", r"cat; printf '\377'"])
    assert done.stdout == "\ufffd"


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(PreconditionError) as caught:
        run(["no-such-program-of-ours", "--version"])
    assert caught.value.message == "`no-such-program-of-ours` is not installed or not on the PATH"
    assert caught.value.hint == "install no-such-program-of-ours and try again"
    assert caught.value.code == "program-missing"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError) as caught:
        run(["true"], cwd=tmp_path / "gone")
    assert (caught.value.message, caught.value.code) == (f"no such folder: {tmp_path / 'gone'}", "not-found")


def test_a_command_that_does_not_end() -> None:
    with pytest.raises(WaitTimeoutError, match=r"`sleep 100` did not end within 0.05 s"):
        run(["sleep", "100"], timeout_s=0.05)


def test_a_command_that_prints_without_end_is_ended() -> None:
    for stream in ("", " >&2"):
        began_at = time.monotonic()
        with pytest.raises(PreconditionError) as caught:
            run(["/bin/sh", "-c", f"exec yes{stream}"], timeout_s=60, limit_bytes=1 << 20)
        assert caught.value.message == f"`/bin/sh -c exec yes{stream}` printed more than 1MiB and was ended"
        assert caught.value.code == "invalid-reply"
        assert time.monotonic() - began_at < 30


def test_a_command_may_print_as_much_as_the_limit_and_read_more_than_a_pipe_holds() -> None:
    content = os.urandom(1 << 19)
    done = run(["/bin/sh", "-c", "cat | wc -c; head -c 1048568 /dev/zero"], stdin=content, limit_bytes=1 << 20)
    assert (done.code, done.stdout[:7], len(done.stdout)) == (0, "524288\n", 1048575)
    assert run(["true"], stdin=content).code == 0, "a command need not read what it is given"


def test_an_identity_as_text() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert own.world == world_id()
    assert own.world.startswith(f"{boot_id()}.")
    assert ProcessId.parse(str(own)) == own
    assert ProcessId.parse("7:0:") == ProcessId(7, 0, "")
    for text in ("", "None", "7", "7:x:y"):
        with pytest.raises(ValueError, match=r"unpack|invalid literal"):
            ProcessId.parse(text)


def test_a_reused_number_is_somebody_else(child: subprocess.Popen[bytes]) -> None:
    found = identify(child.pid)
    assert found is not None
    assert is_alive(found)
    assert not is_alive(ProcessId(found.pid, found.start_ticks - 1, found.world))
    assert not is_alive(ProcessId(found.pid, found.start_ticks, "00000000"))


def test_the_same_number_at_the_same_tick_in_another_container_is_somebody_else(
    child: subprocess.Popen[bytes],
) -> None:
    found = identify(child.pid)
    assert found is not None
    boot, _, namespace = found.world.partition(".")
    assert namespace.isdecimal()
    elsewhere = ProcessId(found.pid, found.start_ticks, f"{boot}.{int(namespace) + 1}")
    assert not is_alive(elsewhere)
    assert not is_here(elsewhere)
    assert session_members(elsewhere) == []
    assert is_alive(ProcessId(found.pid, found.start_ticks, boot)), "a note of an older version"


def test_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    found = identify(child.pid)
    assert found is not None
    assert send_signal(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet waited for
    assert not is_alive(found)
    assert identify(child.pid) is None
    assert child.pid not in descendants(os.getpid())
    child.wait()
    assert not send_signal(child.pid, signal.SIGKILL)


def test_processes_found_by_parent_and_by_mark(child: subprocess.Popen[bytes]) -> None:
    assert child.pid in descendants(os.getpid())
    assert find_by_environment("A_MARK", f"of-{os.getpid()}") == [child.pid]
    assert find_by_environment("A_MARK", "of") == []
    assert os.getpid() not in find_by_environment("PATH", os.environ["PATH"])


def test_descendants_come_parents_first(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [(4, "S", 3), (3, "S", 2), (2, "Z", 1), (5, "S", 1), (9, "S", 8)]
    monkeypatch.setattr(process, "_table", lambda: iter(table))
    assert descendants(1) == [5, 3, 4]
    assert descendants(7) == []


def test_nobody_is_there() -> None:
    assert identify(2**22 + 1) is None


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("no permission to execute")
    (tmp_path / "nothing").write_bytes(b"\0\1\2")
    (tmp_path / "nothing").chmod(0o755)
    for argv0, reason in (
        ("tool", "Permission denied"),
        ("tool/x", "Not a directory"),
        ("nothing", "Exec format error"),
    ):
        with pytest.raises(PreconditionError, match=rf"`.*/{argv0}` cannot be run: {reason}") as caught:
            run([str(tmp_path / argv0)])
        assert caught.value.code == "program-missing"


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError, match=r"`true` cannot be run in .*/file: Not a directory"):
        run(["true"], cwd=tmp_path / "file")


def test_a_process_that_may_not_be_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", kill)
    assert not send_signal(1, signal.SIGKILL)
