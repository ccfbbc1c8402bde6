"""The log pump: no byte lost or doubled, wherever it is killed; full disk; index; fallback."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.core.clock import FakeClock
from windlass.record.redact import Redactor
from windlass.supervise import linux
from windlass.supervise.logs import pipe as channel_module
from windlass.supervise.logs import pump as pump_module
from windlass.supervise.logs.index import index_path, offset_at, read_index
from windlass.supervise.logs.pipe import LogPipe
from windlass.supervise.logs.pump import LogPump

SECRET = b"s3cr3t-value-0123"
REDACTOR = Redactor({"KEY": SECRET})


@pytest.fixture
def channel() -> Iterator[LogPipe]:
    made = LogPipe.create()
    yield made
    made.close()


def new_pump(channel: LogPipe, path: Path, redactor: Redactor = REDACTOR) -> LogPump:
    return LogPump(channel, path, redactor, FakeClock())


def abandon(pump: LogPump) -> None:
    """Leave a pump as a SIGKILL would: nothing flushed, only its descriptors freed."""
    os.close(pump._log_fd)
    os.close(pump._index_fd)


def test_bytes_arrive_redacted(channel: LogPipe, tmp_path: Path) -> None:
    pump = new_pump(channel, tmp_path / "0.log")
    os.write(channel.write_fd, b"key " + SECRET + b"\nnext\n")
    result = pump.pump()
    assert (result.num_bytes, result.is_eof, result.is_blocked) == (27, False, False)
    assert result.data == (tmp_path / "0.log").read_bytes() == b"key [secret KEY]\nnext\n"
    assert pump.last_lines(1) == ["next"]
    pump.close()


def test_empty_pipe_is_no_news(channel: LogPipe, tmp_path: Path) -> None:
    pump = new_pump(channel, tmp_path / "0.log")
    assert pump.pump() == pump_module.PumpResult(0, False, False, b"")
    pump.close()


def test_end_of_output_lets_held_bytes_out(channel: LogPipe, tmp_path: Path) -> None:
    pump = new_pump(channel, tmp_path / "0.log")
    os.write(channel.write_fd, b"a" + SECRET[:9])
    assert pump.pump().data == b"a"
    channel = channel.close_writer()
    result = pump.pump()
    assert (result.is_eof, result.data) == (True, SECRET[:9])
    assert pump.pump().is_eof
    pump.close()


def test_secret_in_two_writes_with_a_restart_between(channel: LogPipe, tmp_path: Path) -> None:
    first = new_pump(channel, tmp_path / "0.log")
    os.write(channel.write_fd, b"a " + SECRET[:9])
    first.pump()
    abandon(first)
    os.write(channel.write_fd, SECRET[9:] + b" b\n")
    second = new_pump(LogPipe.parse(str(channel)), tmp_path / "0.log")
    second.pump()
    assert (tmp_path / "0.log").read_bytes() == b"a [secret KEY] b\n"
    assert second.last_lines(5) == ["a [secret KEY] b"]
    second.close()


def test_drain_with_a_deadline_takes_what_is_there(channel: LogPipe, tmp_path: Path) -> None:
    pump = new_pump(channel, tmp_path / "0.log")
    os.write(channel.write_fd, b"last words s3cr")
    result = pump.drain(deadline=0.0)
    assert (result.num_bytes, result.is_eof, result.data) == (15, False, b"last words s3cr")
    pump.close()


def test_second_log_on_the_same_channel(channel: LogPipe, tmp_path: Path) -> None:
    for number in range(2):
        pump = new_pump(channel, tmp_path / f"{number}.log")
        os.write(channel.write_fd, b"attempt %d\n" % number)
        pump.drain(deadline=0.0)
        pump.close()
    assert [(tmp_path / f"{number}.log").read_bytes() for number in range(2)] == [b"attempt 0\n", b"attempt 1\n"]


def test_existing_log_of_a_lost_guard_is_continued(channel: LogPipe, tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"one\ntwo\n")
    pump = new_pump(channel, tmp_path / "0.log")
    os.write(channel.write_fd, b"three\n")
    pump.pump()
    assert (tmp_path / "0.log").read_bytes() == b"one\ntwo\nthree\n"
    assert [(record.offset, record.line) for record in read_index(tmp_path / "0.log.idx")] == [(8, 2)]
    pump.close()


def test_more_than_the_staging_file_holds(channel: LogPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "_MIN_CAPACITY", 4096)
    pump = new_pump(channel, tmp_path / "0.log")
    text = b"".join(b"line %d\n" % number for number in range(9000))
    os.write(channel.write_fd, text)
    while pump.pump().num_bytes:
        assert os.fstat(channel.staging_fd).st_size <= channel_module.HEADER_BYTES + 4096
    assert (tmp_path / "0.log").read_bytes() == text
    pump.close()


def test_long_beginning_of_a_secret_in_tiny_writes(
    channel: LogPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "_MIN_CAPACITY", 1)
    value = bytes(random.Random(1).choices(range(33, 126), k=3000))
    pump = new_pump(channel, tmp_path / "0.log", Redactor({"LONG": value}))
    for position in range(0, 2999, 7):
        os.write(channel.write_fd, value[position : min(2999, position + 7)])
        assert pump.pump().data == b""
    os.write(channel.write_fd, value[2999:] + b"\n")
    assert pump.pump().data == b"[secret LONG]\n"
    pump.close()


def test_without_splice_it_reads(channel: LogPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: int) -> int:
        raise NotImplementedError

    monkeypatch.setattr(pump_module, "splice_to_file", missing)
    pump = new_pump(channel, tmp_path / "0.log")
    assert pump.pump().num_bytes == 0
    os.write(channel.write_fd, b"key " + SECRET)
    assert pump.pump().data == b"key [secret KEY]"
    channel = channel.close_writer()
    assert pump.pump().is_eof
    pump.close()


def test_splice_through_ctypes(channel: LogPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "splice", raising=False)
    monkeypatch.delattr(os, "memfd_create", raising=False)
    pump = new_pump(channel, tmp_path / "0.log")
    assert pump.pump().num_bytes == 0
    os.write(channel.write_fd, b"hello\n")
    assert pump.pump().data == b"hello\n"
    assert pump._has_splice
    descriptor = linux.create_memory_file("x")
    assert os.pwrite(descriptor, b"x", 10) == 1
    os.close(descriptor)
    pump.close()


# --- full disk


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_blocks_and_goes_on(channel: LogPipe, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"x" * 99_999 + b"\n")
    pump = new_pump(channel, path)
    text = b"".join(b"line %d\n" % number for number in range(1000))
    with largest_file(100_100):
        os.write(channel.write_fd, text)
        result = pump.pump()
        assert (result.is_blocked, result.is_eof, result.data) == (True, False, b"")
        assert path.stat().st_size == 100_000
        channel = channel.close_writer()
        assert pump.pump().is_blocked
        assert pump.drain(deadline=0.0).is_blocked
    assert pump.pump().data == text
    assert pump.pump().is_eof
    assert path.read_bytes()[100_000:] == text
    pump.close()


# --- index


def test_index_finds_the_place_of_a_time(channel: LogPipe, tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    pump = LogPump(channel, tmp_path / "0.log", REDACTOR, clock)
    for _ in range(4):
        os.write(channel.write_fd, b"a\nb\n")
        pump.pump()
        os.write(channel.write_fd, b"c\n")
        pump.pump()
        clock.advance(10.0)
    index = index_path(tmp_path / "0.log")
    assert [(record.offset, record.line) for record in read_index(index)] == [(0, 0), (6, 3), (12, 6), (18, 9)]
    times = [999.0, 1000.05, 1000.2, 1010.0, 1030.0, 1040.0]
    assert [offset_at(index, time_s) for time_s in times] == [0, 0, 6, 6, 18, 24]
    assert offset_at(tmp_path / "none.log.idx", 5.0) == 0
    pump.close()


def test_index_when_the_clock_jumps_back(channel: LogPipe, tmp_path: Path) -> None:
    clock = FakeClock(1000.0)
    pump = LogPump(channel, tmp_path / "0.log", REDACTOR, clock)
    for _ in range(3):
        os.write(channel.write_fd, b"a\n")
        pump.pump()
        clock.jump(-100.0)
    assert [record.time_ns // 10**9 for record in read_index(tmp_path / "0.log.idx")] == [1000, 900, 800]
    pump.close()


# --- death at every step


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs."""


class Reaper:
    """Lets `num_steps` system calls that change something happen, then kills, before the next one or amid it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_amid: bool) -> None:
        self.num_left = -1
        self.is_amid = is_amid
        self.staging_fd = -1
        real_write = os.pwrite

        def half(descriptor: int, content: bytes, offset: int) -> None:
            real_write(descriptor, bytes(content)[: len(content) // 2], offset)

        monkeypatch.setattr(os, "pwrite", self.wrap(os.pwrite, half))
        monkeypatch.setattr(os, "ftruncate", self.wrap(os.ftruncate, None))
        monkeypatch.setattr(pump_module, "splice_to_file", self.wrap(linux.splice_to_file, None))

    def wrap(self, call: Callable[..., object], amid: Callable[..., None] | None) -> Callable[..., object]:
        def wrapped(*arguments: object) -> object:
            if self.num_left == 0:
                is_cursor = arguments[0] == self.staging_fd and arguments[-1] == 0  # within a page: whole or not at all
                if self.is_amid and amid is not None and not is_cursor:
                    amid(*arguments)
                raise Killed
            self.num_left -= 1
            return call(*arguments)

        return wrapped


def pump_until_killed(channel: LogPipe, path: Path, queue: list[bytes], reaper: Reaper, num_left: int) -> bool:
    """One incarnation that dies after `num_left` steps; False when it got through the whole queue."""
    reaper.num_left = num_left
    opened = set(os.listdir("/proc/self/fd"))
    try:
        pump = new_pump(channel, path)
        while queue:
            os.write(channel.write_fd, queue.pop(0))
            pump.pump()
    except Killed:
        return True
    finally:
        reaper.num_left = -1
        for name in set(os.listdir("/proc/self/fd")) - opened:
            with contextlib.suppress(OSError):
                os.close(int(name))
    return False


def finish(channel: LogPipe, path: Path, queue: list[bytes]) -> None:
    """The incarnation that is let live."""
    for piece in queue:
        os.write(channel.write_fd, piece)
    channel = channel.close_writer()
    pump = new_pump(channel, path)
    assert pump.drain(FakeClock().monotonic() + 5).is_eof
    pump.close()
    channel.close()


def check_files(path: Path, pieces: list[bytes]) -> None:
    log = path.read_bytes()
    assert log == REDACTOR.redact(b"".join(pieces))
    for record in read_index(index_path(path)):
        assert log[: record.offset].count(b"\n") == record.line


PLAY = [b"x" * 90 + SECRET[:8], SECRET[8:] + b"y" * 60 + b"\n", b"z" * 99 + b"s3", b"cr3t\n" + b"w" * 99 + SECRET] * 2


@pytest.mark.parametrize("is_amid", [False, True])
def test_killed_at_every_step_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_amid: bool) -> None:
    monkeypatch.setattr(pump_module, "_MIN_CAPACITY", 1)
    reaper = Reaper(monkeypatch, is_amid)
    num_kills = 0
    for first in range(100):
        for second in range(9):
            path = tmp_path / "0.log"
            channel, queue = LogPipe.create(), list(PLAY)
            reaper.staging_fd = channel.staging_fd
            is_killed = pump_until_killed(channel, path, queue, reaper, first)
            pump_until_killed(channel, path, queue, reaper, second)
            finish(channel, path, queue)
            check_files(path, PLAY)
            path.unlink()
            index_path(path).unlink()
            num_kills += is_killed
        if not is_killed:
            break
    assert 200 < num_kills < 900


# --- real processes

WRITER = """
import base64, os, signal, sys
running = True
def stop(*_):
    global running
    running = False
signal.signal(signal.SIGTERM, stop)
secret = os.environ["SECRET"]
encoded = base64.b64encode(b"x" + secret.encode()).decode()
number = 0
while running:
    sys.stdout.write(f"{number} {secret if number % 97 == 0 else encoded if number % 89 == 0 else 'plain'}\\n")
    number += 1
sys.stdout.flush()
print(number, file=sys.stderr)
"""

PUMP = """
import os, select, sys
from pathlib import Path
from windlass.core.clock import SystemClock
from windlass.supervise.logs.pipe import LogPipe
from windlass.supervise.logs.pump import LogPump
from windlass.record.redact import Redactor
channel = LogPipe.parse(sys.argv[1])
pump = LogPump(channel, Path(sys.argv[2]), Redactor({"KEY": os.environ["SECRET"].encode()}), SystemClock())
poll = select.poll()
poll.register(channel.read_fd, select.POLLIN)
os.write(1, b"!")
while not pump.pump().is_eof:
    poll.poll()
pump.close()
"""


def start_pump(channel: LogPipe, path: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PUMP, str(channel), str(path)],
        pass_fds=channel.descriptors,
        stdout=subprocess.PIPE,
        env=environment,
    )


@pytest.mark.system
def test_pump_processes_killed_at_random(channel: LogPipe, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    environment = {**os.environ, "SECRET": SECRET.decode()}
    dice = random.Random(7)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdout=channel.write_fd, stderr=subprocess.PIPE, env=environment
    )
    reader_side = channel.close_writer()
    for _ in range(20):
        with start_pump(reader_side, path, environment) as pump:
            assert pump.stdout is not None
            pump.stdout.read(1)
            time.sleep(dice.uniform(0.0, 0.05))
            pump.send_signal(signal.SIGKILL)
    writer.terminate()
    with start_pump(reader_side, path, environment) as pump:
        _, errors = writer.communicate(timeout=300)
        assert pump.wait(timeout=300) == 0
    log = path.read_bytes()
    lines = log.split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == int(errors) > 10_000
    for number, line in enumerate(lines):
        if number % 97 == 0:
            assert line == b"%d [secret KEY]" % number
        elif number % 89 == 0:
            assert re.fullmatch(rb"%d .*\[secret KEY\].*" % number, line)
        else:
            assert line == b"%d plain" % number
    for content in (log, index_path(path).read_bytes()):
        assert SECRET not in content
    for record in read_index(index_path(path)):
        assert log.count(b"\n", 0, record.offset) == record.line
