"""`node-stop` before the agent was started: the agent that comes later ends at once, and no folder is made for it."""

from __future__ import annotations

import time
from pathlib import Path

from tests.supervise.node.test_agent_end import await_true
from windlass.core.process import find_by_environment
from windlass.supervise.node.agent import start_node
from windlass.supervise.node.ending import end_node
from windlass.supervise.node.spec import NodeFolder, NodeSpec


def test_an_agent_that_is_started_after_the_end_of_its_node_ends_at_once(tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / "node")
    folder.path.mkdir()
    assert end_node(folder.path) == 0
    spec = NodeSpec(
        cluster="c-1",
        token=f"late-{tmp_path.name}-{time.time_ns()}",
        number=0,
        address="127.0.0.1",
        setup=("sleep 1000",),
    )
    (folder.path / "spec.json").write_bytes(spec.to_json())
    assert start_node(folder.path) == 0

    def has_ended() -> bool:
        status = folder.read_status()
        return status is not None and status.state == "ended"

    await_true(has_ended, "the agent goes on")
    await_true(lambda: not find_by_environment("WINDLASS_NODE", spec.token), "processes of the node are left")


def test_the_end_of_a_node_without_a_folder_makes_none(tmp_path: Path) -> None:
    assert end_node(tmp_path / "node") == 0
    assert list(tmp_path.iterdir()) == []
