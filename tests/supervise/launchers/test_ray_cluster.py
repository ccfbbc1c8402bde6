"""How a replica takes what the starting process tells it; real Ray is in tests/system/test_ray.py."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.record.journal import read_journal
from windlass.supervise.launchers import ray_cluster
from windlass.supervise.launchers.ray_cluster import RayPlace, _Events, _gather, _serve


def place(tmp_path: Path, rank: int = 0) -> RayPlace:
    hosts = (("n1", "10.0.0.1"), ("n2", "10.0.0.2"), ("n3", "10.0.0.3"))
    return RayPlace(
        rank=rank, num_nodes=3, address="10.0.0.1", port=29500, folder=tmp_path, num_gpus=4, num_cpus=8, hosts=hosts
    )


def told(*events: dict[str, object], is_over: bool = True) -> _Events:
    read, write = os.pipe()
    os.write(write, b"".join(json.dumps(event).encode() + b"\n" for event in events))
    if is_over:
        os.close(write)
    return _Events(read)


def environ(tmp_path: Path, rank: int = 0) -> dict[str, str]:
    return {
        "WINDLASS_TASK": "main",
        "WINDLASS_RANK": str(rank),
        "WINDLASS_ATTEMPT": "1",
        "WINDLASS_JOURNAL": str(tmp_path / "journal"),
    }


def said(tmp_path: Path) -> tuple[str, str]:
    (record,) = read_journal(tmp_path / "journal")
    assert record.data["code"] == 1
    return record.data["cause"], record.data["message"]


FULL = [4.0, 8.0]
SLOW: dict[str, object] = {"error": "`ray start` failed: The current node timed out during startup."}


def test_user_code_waits_for_every_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = told({"nodes": {"0": FULL}}, {"started": [1]}, {"nodes": {"0": FULL, "2": FULL, "1": FULL}})
    assert _gather(place(tmp_path), events, 5.0, environ(tmp_path)) == 0
    assert "3 nodes, 12 GPUs, 24 CPUs" in capfd.readouterr().err


def test_a_missing_node_is_named_with_its_host(tmp_path: Path) -> None:
    events = told({"nodes": {"0": FULL, "2": FULL}}, is_over=False)
    assert _gather(place(tmp_path), events, 0.05, environ(tmp_path)) == 1
    message = "2 of 3 nodes joined Ray within 0.05 s; missing: replica 1 (n2); joined: replica 0 (n1), replica 2 (n3)"
    assert said(tmp_path) == ("never-ready", message)


def test_a_node_with_too_few_gpus_is_named(tmp_path: Path) -> None:
    events = told({"nodes": {"0": FULL, "1": [3.0, 8.0]}})
    assert _gather(place(tmp_path), events, 5.0, environ(tmp_path)) == 1
    assert said(tmp_path) == ("node-unhealthy", "replica 1 (n2) joined Ray with 3 of 4 GPUs")


def test_a_head_that_dies_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text("Traceback\nOSError: Address already in use\n")
    assert _gather(place(tmp_path), told(), 5.0, environ(tmp_path)) == 1
    assert said(tmp_path) == ("start-failed", "Ray's head did not start: Traceback | OSError: Address already in use")


def test_an_environment_without_ray_is_a_failed_setup(tmp_path: Path) -> None:
    events = told({"error": "`ray` is not installed", "cause": "setup-failed"})
    assert _serve(place(tmp_path, 1), events, 5.0, environ(tmp_path, 1), told) == 1
    message = "replica 1 (n2): `ray` is not installed in the environment of the task; add `ray` to it"
    assert said(tmp_path) == ("setup-failed", message)


def test_a_worker_that_cannot_start_is_a_failed_replica(tmp_path: Path) -> None:
    events = told({"error": "`ray start` failed: no socket", "cause": "start-failed"})
    assert _serve(place(tmp_path, 1), events, 5.0, environ(tmp_path, 1), told) == 1
    assert said(tmp_path) == ("start-failed", "replica 1 (n2): `ray start` failed: no socket")


def test_a_worker_whose_raylet_gave_up_is_started_again(tmp_path: Path) -> None:
    starts: list[_Events] = []

    def again() -> _Events:
        starts.append(told({"error": "`ray start` failed: no socket", "cause": "start-failed"} if starts else SLOW))
        return starts[-1]

    assert _serve(place(tmp_path, 1), told(SLOW), 5.0, environ(tmp_path, 1), again) == 1
    assert len(starts) == 2
    assert said(tmp_path) == ("start-failed", "replica 1 (n2): `ray start` failed: no socket")


def test_a_worker_that_never_comes_up_fails_in_the_end(tmp_path: Path) -> None:
    assert _serve(place(tmp_path, 1), told(SLOW), 5.0, environ(tmp_path, 1), lambda: told(SLOW)) == 1
    assert said(tmp_path)[0] == "start-failed"


def test_a_worker_without_a_head_gives_up(tmp_path: Path) -> None:
    assert _serve(place(tmp_path, 2), told(is_over=False), 0.05, environ(tmp_path, 2), told) == 1
    assert said(tmp_path) == ("never-ready", "replica 2 (n3) found no Ray head at 10.0.0.1:29500 within 0.05 s")


def test_a_worker_ends_with_its_raylet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_WATCH_S", 0.0)
    monkeypatch.setattr(ray_cluster, "identify", lambda pid: None)
    assert _serve(place(tmp_path, 1), told({"started": [4711]}), 5.0, environ(tmp_path, 1), told) == 1
    assert said(tmp_path) == ("killed", "the raylet of replica 1 (n2) ended while the head was running")
