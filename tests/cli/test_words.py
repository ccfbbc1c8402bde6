"""Small things: how times, sizes and tables read, and what a record says."""

from __future__ import annotations

import io
import sys
import time

import click
import pytest

from windlass.cli import screen
from windlass.cli.render.progress import Progress, describe_end
from windlass.cli.times import as_duration, as_moment
from windlass.core import phrases
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.state import End

CONTEXT, PARAMETER = click.Context(click.Command("x")), click.Option(["--since"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (0.44, "0.4s"),
        (12, "12s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (360000, "4d04h"),
        (-1, "0.0s"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert phrases.duration(seconds) == text


@pytest.mark.parametrize(
    ("passed", "text"), [(0, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7200, "2h ago"), (200000, "2d ago")]
)
def test_ago_has_one_unit(passed: float, text: str) -> None:
    assert phrases.ago(1000.0, 1000.0 + passed) == text


def test_sizes_counts_and_cuts() -> None:
    assert [phrases.size(n) for n in (0, 1023, 1536, 3 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
    assert [phrases.count(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert phrases.brief("one line\nanother", 40) == "one line"
    assert phrases.brief("abcdefghij", 8) == "abcde..."


def test_tables_are_as_wide_as_they_need() -> None:
    assert screen.table(("run", "state"), [("a-1", "failed"), ("long-name", "")]) == [
        "RUN        STATE",
        "a-1        failed",
        "long-name",
    ]


def test_colour_needs_a_terminal_and_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert screen.paint("x", "red", stream=Terminal()) == "\x1b[31mx\x1b[0m"
    assert screen.paint("x", "red", stream=io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen.paint("x", "red", stream=Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert screen.paint("x", "red", stream=Terminal()) == "x"


def test_nothing_steers_the_terminal() -> None:
    assert screen.printable("a\x1b[0m\tb\nc\x7f\r") == "a\\x1b[0m\tb\nc\\x7f\\x0d"


def test_raw_bytes_go_out_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    screen.write_raw(b"\xff\x00\n")
    assert out.buffer.getvalue() == b"\xff\x00\n"


def test_moments() -> None:
    assert as_moment(CONTEXT, PARAMETER, None) == 0.0
    assert as_moment(CONTEXT, PARAMETER, "1970-01-02T00:00:00Z") == 86400.0
    assert as_moment(CONTEXT, PARAMETER, "10m") == pytest.approx(time.time() - 600, abs=5)
    assert as_duration(CONTEXT, PARAMETER, "1h30m") == 5400.0
    assert as_duration(CONTEXT, PARAMETER, None) is None
    with pytest.raises(click.BadParameter, match="`3x`: a duration is a number with a unit"):
        as_duration(CONTEXT, PARAMETER, "3x")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (End("ok"), "ok"),
        (End("killed", -9, 1, "node3"), "killed: rank 1 on node3, ended by SIGKILL"),
        (End("killed", 137, 1, "node3", "ended by SIGKILL"), "killed: rank 1 on node3, ended by SIGKILL"),
        (
            End("user-error", 3, 0, "vm", "exit code 3: ValueError: x"),
            "user-error: rank 0 on vm, exit code 3: ValueError: x",
        ),
        (End("stalled", message="no step for 5m"), "stalled: no step for 5m"),
    ],
)
def test_ends(end: End, text: str) -> None:
    assert describe_end(end) == text


def record(kind: str, at: float, **data: object) -> Record:
    return Record(kind, "w", 1, at, dict(data))


def test_progress_says_what_is_new_once() -> None:
    progress = Progress()
    end = End("killed", -9, 1).to_data()
    history = [
        record(events.TASK_QUEUED, 1.0, task="t", job=1, reason="waits for 1 GPU"),
        record(events.TASK_QUEUED, 2.0, task="t", job=1, reason="waits for 1 GPU"),
        record(events.TASK_QUEUED, 3.0, task="t", job=1, reason=""),
        record(events.ATTEMPT_STARTED, 4.0, task="t", job=1, attempt=1, epoch=1, leader="n", address="a", port=1),
        record(events.CHECKPOINT, 5.0, task="t", attempt=1, rank=0, path="p", step=30),
        record(events.ATTEMPT_ENDED, 9.5, task="t", job=1, attempt=1, epoch=1, end=end),
        record(events.ATTEMPT_STARTED, 10.0, task="t", job=1, attempt=2, epoch=1, leader="n", address="a", port=1),
        record(events.METRICS, 11.0, task="t", values={}),
        record(events.STOP_REQUESTED, 12.0, tasks={"t": 1}, reason="by hand", is_checkpoint_wanted=False),
        record(events.NOTE, 13.0, task="", message="hello"),
    ]
    assert [text for text in map(progress.describe, history) if text] == [
        "t: queued: waits for 1 GPU",
        "t: attempt 1 started",
        "t: attempt 1 ended after 5.5s: killed: rank 1, ended by SIGKILL",
        "t: attempt 2 started, from the checkpoint of step 30",
        "stop requested: by hand",
        "hello",
    ]
