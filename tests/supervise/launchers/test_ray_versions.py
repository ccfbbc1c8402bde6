"""What a node says about its Ray."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from windlass.cluster.starting import ready_words
from windlass.core.process import find_by_environment
from windlass.supervise.launchers.ray_versions import TESTED, is_tested, ray_warning
from windlass.supervise.node.agent import start_node
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus

_TESTED = "windlass is tested with Ray 2.40 to 2.60, and this is "


@pytest.mark.parametrize("version", ["2.40.0", "2.40.1.dev3", "2.52.0", "2.60", "2.60.0rc1", "2.60.9"])
def test_a_version_between_the_oldest_and_the_newest_is_tested(version: str) -> None:
    assert is_tested(version)
    assert ray_warning(version) == ""


@pytest.mark.parametrize("version", ["2.39.0", "1.13.0", "2.4.0", "2.61.0", "3.0.0.dev0", "2", "nightly", ""])
def test_others_are_warned_about_with_the_range(version: str) -> None:
    assert not is_tested(version)
    assert ray_warning(version) == _TESTED + (version or "of unknown version")


def test_a_ray_that_ignores_tokens_says_so_besides() -> None:
    warning = ray_warning("2.40.0", authenticates=False)
    assert warning.startswith("this Ray ignores the cluster's token")
    assert ray_warning("2.39.0", authenticates=False) == f"{_TESTED}2.39.0; {warning}"


def test_the_newest_tested_is_the_one_of_the_tests() -> None:
    lines = (Path(__file__).parents[3] / "requirements" / "dev.txt").read_text().splitlines()
    (pinned,) = [line.partition("==")[2].split()[0] for line in lines if line.startswith("ray==")]
    assert ".".join(map(str, TESTED[1])) == ".".join(pinned.split(".")[:2])


def test_a_line_of_up_ends_with_the_warning() -> None:
    assert ready_words("h1", NodeStatus(token="t", state="ready")) == "h1 is ready"
    assert ready_words("h1", NodeStatus(token="t", state="ready", message="old")) == "h1 is ready; old"


_PYTHON = """#!/usr/bin/env python3
# A Python whose Ray is three lines: the events of `ray-start`, to the descriptor of its last word.
import json, os, sys, time
fd = json.loads(sys.argv[-1])["fd"]
for event in {events}:
    os.write(fd, json.dumps(event).encode() + b"\\n")
time.sleep(600)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("version", "last", "state", "words"),
    [
        ("2.39.0", "started", "ready", _TESTED + "2.39.0"),
        ("2.60.0", "started", "ready", ""),
        ("2.61.0", "error", "failed", f"`ray start` failed: no: no output; {_TESTED}2.61.0"),
        ("2.60.0", "error", "failed", "`ray start` failed: no: no output"),
    ],
)
def test_the_status_of_a_node_has_the_warning(tmp_path: Path, version: str, last: str, state: str, words: str) -> None:
    python = tmp_path / "python"
    events = [
        {"version": version},
        {"started": [], "authenticates": True} if last == "started" else {"error": "`ray start` failed: no"},
    ]
    python.write_text(_PYTHON.replace("{events}", json.dumps(events).replace("true", "True")))
    python.chmod(0o755)
    folder = NodeFolder(tmp_path / "node")
    folder.path.mkdir()
    token = f"ray{time.time_ns()}"
    spec = NodeSpec(cluster="c-1", token=token, number=0, address="127.0.0.1", python=str(python))
    (folder.path / "spec.json").write_bytes(spec.to_json())
    assert start_node(folder.path) == 0
    try:
        end_s = time.monotonic() + 60
        while (status := folder.read_status()) is None or status.state not in {"ready", "failed"}:
            assert time.monotonic() < end_s, status
            time.sleep(0.02)
        assert (status.state, status.message) == (state, words)
    finally:
        folder.request_stop()
        while find_by_environment("WINDLASS_NODE", token):
            time.sleep(0.02)
