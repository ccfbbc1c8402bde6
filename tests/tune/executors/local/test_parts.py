"""Parts of the local executor by themselves: deaths, watchdog, logs, wires, channels that outlive heads."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from windlass.tune.executors.channel import ChannelClosed, SocketChannel, from_message, to_message
from windlass.tune.executors.local.detached import DetachedChannel, registration_path, spool_path
from windlass.tune.executors.local.line_connection import LineConnection
from windlass.tune.executors.local.slots import explain
from windlass.tune.executors.local.trial_monitor import OutputTail, QuietTrials
from windlass.tune.executors.output import log_names, log_path, settle_output
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Go,
    Halt,
    StartAttempt,
)
from windlass.tune.trial import Resources


@pytest.mark.parametrize(
    ("status", "is_oom", "how", "words", "kind"),
    [
        (signal.SIGKILL, False, AttemptOutcome.LOST, "killed by SIGKILL", ""),
        (signal.SIGKILL, True, AttemptOutcome.LOST, "out of memory", ""),
        (signal.SIGTERM, True, AttemptOutcome.LOST, "killed by SIGTERM", ""),
        (signal.SIGSEGV, False, AttemptOutcome.FAILED, "segmentation fault", "SIGSEGV"),
        (signal.SIGABRT, False, AttemptOutcome.FAILED, "an abort", "SIGABRT"),
        (50, False, AttemptOutcome.LOST, "killed by signal 50", ""),
        (3 << 8, False, AttemptOutcome.FAILED, "exit code 3", "ProcessExit"),
        (0, False, AttemptOutcome.FAILED, "exit code 0", "ProcessExit"),
    ],
)
def test_deaths_are_explained(status: int, is_oom: bool, how: AttemptOutcome, words: str, kind: str) -> None:
    found = explain(int(status), is_oom=is_oom)
    assert (found[0], found[2]) == (how, kind)
    assert words in found[1]


def test_the_watchdog_tells_each_silence_once() -> None:
    dog = QuietTrials(factor=10, floor_s=5)
    dog.began("slow", 0)
    dog.began("fast", 0)
    for second in range(1, 4):
        dog.reported("fast", second)
        dog.reported("slow", second * 10)
    assert dog.quiet(8.0) == []
    assert dog.quiet(14.0) == [("fast", 11.0, 1.0)]
    assert dog.quiet(15.0) == []
    dog.reported("fast", 16.0)
    assert dog.quiet(31.0) == [("fast", 15.0, 1.0)]
    assert dog.quiet(131.0) == [("slow", 101.0, 10.0)]
    dog.ended("fast")
    dog.ended("slow")
    assert dog.quiet(1e9) == []


def test_the_watchdog_is_patient_before_the_first_report() -> None:
    dog = QuietTrials(factor=10, floor_s=5)
    dog.began("new", 0)
    assert dog.quiet(50.0) == []
    assert dog.quiet(51.0) == [("new", 51.0, 0.0)]


@pytest.mark.parametrize(
    ("said", "names"),
    [
        (False, ("log", "log")),
        (None, ("log", "log")),
        (True, ("stdout", "stderr")),
        ("all.txt", ("all.txt", "all.txt")),
        (("o", "e"), ("o", "e")),
    ],
)
def test_log_names(said: object, names: tuple[str, str]) -> None:
    assert log_names(said) == names


def test_what_a_dead_worker_printed_is_added_to_its_trials_log(tmp_path: Path) -> None:
    (tmp_path / "spools").mkdir()
    for text in ("first\n", "second\n", ""):
        (tmp_path / "spools" / "1.log.out").write_text(text)
        settle_output(str(tmp_path), "1", "00000", {})
        assert os.listdir(tmp_path / "spools") == []
    assert Path(log_path(str(tmp_path), "00000", "log")).read_text() == "first\nsecond\n"


def test_the_echo_shows_whole_lines_of_each_trial(tmp_path: Path) -> None:
    out = io.StringIO()
    echo = OutputTail(str(tmp_path), ("log", "log"), out)
    log = Path(log_path(str(tmp_path), "00000", "log"))
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    echo.began("00000")
    with log.open("a") as file:
        file.write("a\nb")
        file.flush()
        echo.look()
        file.write("c\nd")
    assert out.getvalue() == "(00000) a\n"
    echo.ended("00000")
    assert out.getvalue() == "(00000) a\n(00000) bc\n(00000) d\n"


def test_values_travel_as_messages() -> None:
    shape = Resources(bundles=({"CPU": 1.0}, {"GPU": 0.5}), strategy="SPREAD")
    values: list[Any] = [
        StartAttempt(
            trial="t", attempt=2, config={"a": {"b": [1]}}, resources=shape, restore_from="x", iteration=3, credit=4
        ),
        Go(trial="t", attempt=2, credit=4, saves=True, upto=9),
        Halt(trial="t", attempt=2, saves=True),
        AttemptStarted(trial="t", attempt=2, slot="1", host="h", pid=7),
        AttemptReported(trial="t", attempt=2, metrics={"a": 1.5}, saved="x"),
        AttemptSaved(trial="t", attempt=2, iteration=3, path="x"),
        AttemptEnded(trial="t", attempt=2, how=AttemptOutcome.FAILED, error="e", kind="k"),
    ]
    for value in values:
        assert from_message(json.loads(json.dumps(to_message(value)))) == value


def test_a_wire_keeps_what_does_not_fit_and_reads_whole_lines() -> None:
    ours, theirs = socket.socketpair()
    wire, channel = LineConnection(ours), SocketChannel(theirs)
    big = {"type": "start", "config": "x" * 3_000_000}
    wire.send(big)
    wire.send({"type": "go"})
    assert wire.has_unsent
    theirs.setblocking(False)
    found: list[object] = []
    while len(found) < 2:
        message = channel.receive(0)
        found += [message] if message else []
        wire.flush()
    assert found == [big, {"type": "go"}]
    theirs.send(b'{"type":"a"}\n{"type":"b"}\n{"ty')
    assert wire.receive() == [{"type": "a"}, {"type": "b"}]
    theirs.send(b'pe":"c"}\n')
    assert wire.receive() == [{"type": "c"}]
    theirs.close()
    assert wire.receive() == []
    assert wire.is_closed


START = {"type": "start", "trial": "00000", "attempt": 1, "resources": {"bundles": [], "strategy": "PACK"}}


def detached(folder: Path, *, linger_s: float = 60.0) -> tuple[DetachedChannel, LineConnection]:
    (folder / "spools").mkdir()
    ours, theirs = socket.socketpair()
    facts = {"template": "None", "variables": {}, "is_single": False, "stacks": 3}
    channel = DetachedChannel(theirs, str(folder), "1", facts, sockets=str(folder), linger_s=linger_s)
    return channel, LineConnection(ours)


def said(number: int) -> dict[str, object]:
    return {"type": "reported", "trial": "00000", "attempt": 1, "metrics": {"n": number}}


def test_without_a_head_a_worker_goes_on_and_the_next_head_hears_everything(tmp_path: Path) -> None:
    channel, head = detached(tmp_path)
    head.send(START)
    assert channel.receive() == START
    channel.send(said(1))
    head.close()
    assert channel.receive() == {"type": "go", "trial": "00000", "attempt": 1, "credit": 1, "upto": 0, "saves": False}
    channel.send(said(2))
    lines = spool_path(str(tmp_path), "1").read_text().splitlines()
    assert [json.loads(line)["metrics"]["n"] for line in lines] == [1, 2]
    registered = json.loads(registration_path(str(tmp_path), "1").read_text())
    assert (registered["trial"], registered["attempt"]) == ("00000", 1)
    client = socket.socket(socket.AF_UNIX)
    client.connect(registered["socket"])
    next_head = LineConnection(client)
    channel.send(said(3))
    hello, *reports = next_head.receive()
    assert hello["type"] == "hello"
    assert [report["metrics"]["n"] for report in reports] == [1, 2, 3]
    assert not spool_path(str(tmp_path), "1").exists()
    next_head.send({"type": "go"})
    assert channel.receive() == {"type": "go"}
    channel.close()
    next_head.close()
    assert not registration_path(str(tmp_path), "1").exists()


def test_when_no_head_comes_a_trial_is_told_to_save_and_is_lost(tmp_path: Path) -> None:
    channel, head = detached(tmp_path, linger_s=0.0)
    head.send(START)
    channel.receive()
    head.close()
    message = channel.receive()
    assert message is not None
    assert (message["type"], message["saves"]) == ("halt", True)
    channel.send({"type": "ended", "trial": "00000", "attempt": 1, "how": "halted", "error": "", "kind": ""})
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
    last = json.loads(spool_path(str(tmp_path), "1").read_text().splitlines()[-1])
    assert last["how"] == "lost"
    assert "no head came back" in last["error"]


def test_an_idle_worker_ends_when_no_head_comes(tmp_path: Path) -> None:
    channel, head = detached(tmp_path, linger_s=0.0)
    head.close()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
