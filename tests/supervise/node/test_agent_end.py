"""End of a rented machine with a real agent and a real store: its head is silent in set-up, after a failure, without a folder;
and the end of a head that failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.core.files import is_locked
from windlass.core.process import find_by_environment, identify
from windlass.supervise.node import ending, head_link, processes
from windlass.supervise.node.agent import start_node
from windlass.supervise.node.spec import NodeFolder, NodeSpec
from windlass.supervise.node.store import NodeStore


def await_true(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


@pytest.mark.parametrize("setup", ["sleep 1000", "exit 3", "sleep 1; rm -rf $WINDLASS_NODE_FOLDER; exit 3"])
def test_a_worker_whose_head_is_silent_ends_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup: str
) -> None:
    monkeypatch.setattr(head_link, "_LEAST_SILENCE_S", 4.0)  # agents are forks of this process
    head, worker, ended = tmp_path / "head", tmp_path / "worker", tmp_path / "ended"
    for each in (head, worker):
        each.mkdir()
    spec = NodeSpec(cluster="c-1", token=f"head-{tmp_path.name}", number=0, auth_token="secret")
    store = NodeStore(NodeFolder(head), spec, address="127.0.0.1", head="127.0.0.1:1", archive=tmp_path / "none")
    store.start()
    node = NodeSpec(
        cluster="c-1",
        token=f"worker-{tmp_path.name}-{time.time_ns()}",
        number=1,
        head="127.0.0.1:1",
        address="127.0.0.1",
        setup=(setup,),
        idle_s=1.0,
        auth_token="secret",
        group="gpu",
        instance="i-1",
        store=store.address,
        shutdown=f"touch {ended}; kill -9 $PPID",
    )
    (worker / "spec.json").write_bytes(node.to_json())
    assert start_node(worker) == 0
    await_true((head / "nodes" / "i-1.json").exists, "the worker never spoke to its head")
    assert not ended.exists()
    store.close()
    await_true(ended.exists, "the machine did not end")
    await_true(lambda: not find_by_environment("WINDLASS_NODE", node.token), "processes of the node are left")


def test_a_head_that_failed_starts_again_in_time_and_ends_its_machine_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, ended = tmp_path / "head", tmp_path / "ended"
    head.mkdir()
    node = NodeSpec(
        cluster="c-1",
        token=f"head-{tmp_path.name}-{time.time_ns()}",
        number=0,
        address="127.0.0.1",
        setup=(f"touch {tmp_path}/try-$(ls {tmp_path} | wc -l); exit 3",),
        auth_token="secret",
        group="head",
        instance="i-1",
        shutdown=f"touch {ended}; kill -9 $PPID",
    )
    folder = NodeFolder(head)
    (head / "spec.json").write_bytes(node.to_json())

    def tries() -> int:
        return len(list(tmp_path.glob("try-*")))

    def has_failed() -> bool:
        status = folder.read_status()
        return status is not None and status.state == "failed" and not is_locked(head / "lock")

    assert start_node(head) == 0
    await_true(has_failed, "the node did not fail")
    first = folder.read_status()
    assert start_node(head) == 0  # as the next `up` does
    await_true(lambda: tries() == 2, "no second try")
    await_true(has_failed, "the second try did not fail")
    assert first is not None
    await_true(lambda: identify(int(first.process.partition(":")[0])) is None, "the first agent did not end")
    assert not ended.exists()
    monkeypatch.setattr(ending, "KEEP_FAILED_S", 0.5)  # agents are forks of this process
    assert start_node(head) == 0
    await_true(ended.exists, "the machine did not end")
    assert tries() == 3
    # The second agent has left it to the third.
    await_true(lambda: not find_by_environment("WINDLASS_NODE", node.token), "processes of the node are left")


def test_a_process_that_cannot_be_killed_does_not_keep_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "descendants", lambda root: [1])
    monkeypatch.setattr(processes, "find_by_environment", lambda name, value: [1])
    monkeypatch.setattr(processes, "send_signal", lambda pid, number: None)
    monkeypatch.setattr(processes, "_GRACE_S", 0.1)
    processes.end_processes(1, limit_s=0.3)
    processes.end_leftovers("t", limit_s=0.3)
