"""Machine of a node that failed: it stays for its logs for a bounded time, unless another agent takes the node over."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from windlass.core.clock import FakeClock
from windlass.core.files import is_locked
from windlass.supervise.node.ending import KEEP_FAILED_S, await_machine_end
from windlass.supervise.node.spec import NodeFolder, NodeStatus

OURS = "100:1:w"


class Scene:
    """A node that failed; `events` happen at seconds after the failure."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.folder = FakeClock(), NodeFolder(folder)
        self.began_s = self.clock.monotonic()
        self.folder.write_status(NodeStatus(token="t", state="failed", process=OURS))
        self.reasons: dict[float, str] = {}
        self.taken_s: float | None = None

    @property
    def seconds(self) -> float:
        return self.clock.monotonic() - self.began_s

    def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if self.taken_s is not None and self.seconds >= self.taken_s:
            self.folder.write_status(NodeStatus(token="t", state="setup", process="200:1:w"))

    def reason(self) -> str:
        return next((why for at_s, why in self.reasons.items() if self.seconds >= at_s), "")

    def play(self) -> str:
        return await_machine_end(self.folder, OURS, self.reason, monotonic=self.clock.monotonic, sleep=self.sleep)


def test_the_machine_of_a_failed_node_stays_for_15_minutes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert KEEP_FAILED_S == 900.0
    assert scene.play() == "its node failed 900 s ago"
    assert scene.seconds == pytest.approx(900.0, abs=1.0)
    assert is_locked(tmp_path / "lock")  # no agent starts on a machine that ends


def test_it_ends_earlier_for_any_other_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.reasons = {60.0: "its time to live of 60 s is over"}
    assert scene.play() == "its time to live of 60 s is over"
    assert scene.seconds == pytest.approx(60.0, abs=1.0)


@pytest.mark.parametrize("after_s", [0.5, 899.0])
def test_another_agent_that_takes_the_node_over_keeps_the_machine(tmp_path: Path, after_s: float) -> None:
    scene = Scene(tmp_path)
    scene.taken_s = after_s
    assert scene.play() == ""
    assert scene.seconds == pytest.approx(after_s, abs=1.0)
    assert not is_locked(tmp_path / "lock")


def test_an_agent_that_has_begun_but_said_nothing_keeps_the_machine(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    other = os.open(str(tmp_path / "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        assert scene.play() == ""
    finally:
        os.close(other)


def test_neither_a_disk_that_fails_nor_a_folder_that_is_gone_keeps_the_machine(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (tmp_path / "status.json").write_text("{")
    scene.folder = NodeFolder(tmp_path / "none")

    def fails() -> str:
        raise OSError(5, "Input/output error")

    found = await_machine_end(scene.folder, OURS, fails, monotonic=scene.clock.monotonic, sleep=scene.sleep)
    assert found == "its node failed 900 s ago"
