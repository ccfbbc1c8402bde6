from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

import pytest

from windlass.supervise.replica import memory
from windlass.supervise.replica.memory import count_oom_kills, proportional_bytes
from windlass.supervise.replica.process_tree import resident_bytes


def test_pages_that_processes_share_are_counted_once() -> None:
    size = 32 << 20
    shared = mmap.mmap(-1, size)
    shared.write(b"x" * size)
    children = []
    ready_read, ready_write = os.pipe()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            sum(shared[position] for position in range(0, size, mmap.PAGESIZE))
            os.write(ready_write, b"1")
            signal.pause()
            os._exit(0)
        children.append(pid)
    try:
        got = b""
        while len(got) < len(children):
            got += os.read(ready_read, 8)
        assert resident_bytes(children) >= 3 * size
        assert proportional_bytes(children) < resident_bytes(children) - size
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)


def test_a_process_that_is_gone_takes_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
    assert proportional_bytes([pid]) == 0


def oom_group(folder: Path, num_kills: int) -> tuple[Path, ...]:
    folder.mkdir(exist_ok=True)
    text = f"low 0\nhigh 3\nmax 9\noom 2\noom_kill {num_kills}\noom_group_kill 0\n"
    (folder / "memory.events").write_text(text)
    return folder / "not there", folder / "memory.events"


def test_the_kernels_kills_are_those_of_the_own_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_group_of", lambda process: oom_group(tmp_path, 4))
    assert count_oom_kills() == 4
    monkeypatch.setattr(memory, "_group_of", lambda process: (tmp_path / "not there",))
    assert count_oom_kills() == 0


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Path, ...]]:
    """Control groups by process, none of which has lost one; the machine's count is in the folder's `all`."""
    found = {"self": oom_group(tmp_path / "own", 0), "7": oom_group(tmp_path / "other", 0)}
    (tmp_path / "all").write_text("0")
    monkeypatch.setattr(memory, "_group_of", lambda process: found[process])
    monkeypatch.setattr(memory, "_count_all", lambda: int((tmp_path / "all").read_text()))
    monkeypatch.setattr(memory, "_LIKELY_BYTES", 0)
    return found


@pytest.mark.parametrize("is_contained", [True, False])
def test_a_kill_in_the_own_group_is_certain(
    tmp_path: Path, groups: dict[str, tuple[Path, ...]], is_contained: bool
) -> None:
    watch = memory.OomWatch(is_contained=is_contained)
    assert not watch.has_struck()
    oom_group(tmp_path / "own", 1)
    assert watch.has_struck()


def test_a_kill_elsewhere_explains_nothing_where_the_own_group_is_seen(
    tmp_path: Path, groups: dict[str, tuple[Path, ...]]
) -> None:
    watch = memory.OomWatch(is_contained=False)
    (tmp_path / "all").write_text("1")
    assert not watch.has_struck()


def test_a_process_that_moved_to_another_group_is_judged_by_that(
    tmp_path: Path, groups: dict[str, tuple[Path, ...]]
) -> None:
    watch = memory.OomWatch(is_contained=False)
    (tmp_path / "all").write_text("1")
    watch.look_at(7, 0.0)
    assert not watch.has_struck()
    oom_group(tmp_path / "other", 1)
    assert watch.has_struck()


def test_where_no_group_is_seen_a_kill_elsewhere_explains_only_what_was_big(
    tmp_path: Path, groups: dict[str, tuple[Path, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups["self"] = (tmp_path / "not there",)
    watch, contained = memory.OomWatch(is_contained=False), memory.OomWatch(is_contained=True)
    assert not watch.has_struck()
    assert not contained.has_struck()
    (tmp_path / "all").write_text("1")
    assert watch.has_struck()
    monkeypatch.setattr(memory, "_LIKELY_BYTES", 1 << 60)
    assert not watch.has_struck()
    assert contained.has_struck()
