from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.record.frames import Record
from windlass.record.journal import read_journal
from windlass.report import reporter


class Job:
    """A job's environment in a temporary folder, as a supervisor sets it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.journal = root / "journal"
        self.checkpoints = root / "checkpoints"
        self.control_file = root / "control.json"
        self._monkeypatch = monkeypatch
        self.set(RUN="exp-abcdefgh", TASK="train", RANK="1", ATTEMPT="2", NUM_REPLICAS="4", RESUME="1")
        self.set(
            JOURNAL=str(self.journal),
            CONTROL=str(self.control_file),
            CHECKPOINTS=str(self.checkpoints),
            OUT=str(root / "out"),
        )

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv("WINDLASS_" + name, value)
        self.restart()

    def restart(self) -> None:
        """Forget everything, as the next process would."""
        leave()

    def control(self, **content: object) -> None:
        temporary = self.root / "control.tmp"
        temporary.write_text(json.dumps({"stop": False, "checkpoint": 0, "deadline": None, "reason": "", **content}))
        temporary.replace(self.control_file)

    def records(self, kind: str = "") -> list[Record]:
        channel = reporter.current().channel
        if channel is not None:
            channel.flush()
        return [record for record in read_journal(self.journal) if kind in ("", record.kind)]


def leave() -> None:
    """End the life of this process's reporter."""
    if reporter._reporter is not None:
        reporter._reporter.requests.stop_listening()
        if reporter._reporter.channel is not None:
            reporter._reporter.channel.close()
    reporter._reporter = None


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "RUN",
        "TASK",
        "RANK",
        "ATTEMPT",
        "NUM_REPLICAS",
        "RESUME",
        "JOURNAL",
        "CONTROL",
        "CHECKPOINTS",
        "OUT",
    ):
        monkeypatch.delenv("WINDLASS_" + name, raising=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("windlass.report.requests.LOOK_EVERY_S", 0.0)
    leave()
    yield
    leave()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


@pytest.fixture
def monotonic(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock that reporter and requests read."""
    now = [1000.0]
    monkeypatch.setattr("windlass.report.reporter.time.monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance
