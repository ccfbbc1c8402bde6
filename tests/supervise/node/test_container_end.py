"""End of a node with a real agent while its container is made, and if it stays; the engine is a script."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.hosts import wait_until
from windlass.core.process import find_by_environment, identify
from windlass.supervise.node import agent, ending
from windlass.supervise.node.agent import start_node
from windlass.supervise.node.container import NOT_REMOVED, end_container, read_container
from windlass.supervise.node.ending import end_node
from windlass.supervise.node.spec import NODE_VARIABLE, NodeFolder, NodeSpec

PODMAN = """#!/bin/sh
PATH=/usr/bin:/bin
case $1 in
--version) echo podman version 5.0;;
info) echo 5.0 none;;
run)
    env -u WINDLASS_NODE sleep 600 < /dev/null > /dev/null 2>&1 &
    echo $! > {0}/child
    : > {0}/runs; until [ -e {0}/go ]; do sleep 0.02; done; : > {0}/container;;
ps) [ -e {0}/container ] && echo abc; exit 0;;
rm) [ -e {0}/stays ] && {{ echo busy >&2; exit 1; }}; rm -f {0}/container;;
esac
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a node in a container of `podman`, which is made once the file `go` is there."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "podman").write_text(PODMAN.format(tmp_path))
    (programs / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    folder = tmp_path / "node"
    folder.mkdir()
    spec = NodeSpec(
        cluster="c-1",
        token=f"{time.time_ns():x}-{os.getpid()}",
        number=0,
        address="127.0.0.1",
        image="ray:1",
        image_engine="podman",
    )
    (folder / "spec.json").write_bytes(spec.to_json())
    yield folder
    (tmp_path / "go").touch()
    (tmp_path / "stays").unlink(missing_ok=True)
    assert end_node(folder) == 0


def agent_of(node: Path) -> int:
    status = NodeFolder(node).read_status()
    assert status is not None
    return int(status.process.partition(":")[0])


def begin(node: Path) -> None:
    assert start_node(node) == 0
    wait_until((node.parent / "runs").exists, "the engine to make the container")


def test_a_node_that_ends_while_its_container_is_made_leaves_none(node: Path) -> None:
    begin(node)
    codes: list[int] = []
    ends = threading.Thread(target=lambda: codes.append(end_node(node, timeout_s=300.0)), daemon=True)
    ends.start()
    ends.join(1.0)
    assert (ends.is_alive(), read_container(node) is not None) == (True, True)
    (node.parent / "go").touch()
    ends.join(120.0)
    assert codes == [0]
    assert not (node.parent / "container").exists()
    status = NodeFolder(node).read_status()
    assert status is not None
    assert (status.state, status.message) == ("ended", "stopped")


def test_an_agent_whose_engine_does_not_reply_is_killed_with_the_engine_s_client(node: Path) -> None:
    begin(node)
    token = NodeFolder(node).read_spec().token
    assert find_by_environment(NODE_VARIABLE, token)
    assert end_node(node, timeout_s=0.1) == 0
    assert identify(agent_of(node)) is None
    child = int((node.parent / "child").read_text())
    wait_until(lambda: identify(child) is None, "what the agent started to end", timeout_s=60.0)
    assert not find_by_environment(NODE_VARIABLE, token)
    assert read_container(node) is None


def at_once(folder: Path, **options: Any) -> str:
    return end_container(folder, **{**options, "limit_s": 0.0})


def test_a_node_whose_container_stays_has_not_ended(
    node: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent, "end_container", at_once)
    monkeypatch.setattr(ending, "end_container", at_once)
    begin(node)
    container = read_container(node)
    assert container is not None
    for name in ("stays", "go"):
        (node.parent / name).touch()
    assert end_node(node) == NOT_REMOVED
    left = f"podman does not remove the container {container.name}: busy"
    assert capfd.readouterr().err.splitlines()[-2:] == [left, f"podman rm --force --volumes {container.name}"]
    status = NodeFolder(node).read_status()
    assert status is not None
    assert (status.state, status.code) == ("failed", "engine-failed")
    assert status.message.endswith(left)
    assert end_node(node) == NOT_REMOVED
    (node.parent / "stays").unlink()
    assert end_node(node) == 0
    assert not (node.parent / "container").exists()
