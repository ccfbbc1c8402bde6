"""Starting of agents: who waits for whom, and what ends the waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cluster.test_plan import SSH, config_of
from tests.lab.hosts import wait_until
from windlass.cluster import starting
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.protocol import Provider
from windlass.cluster.starting import NodeStarter
from windlass.core.errors import UnreachableError
from windlass.runs.home import Home
from windlass.supervise.node.spec import NodeSpec, NodeStatus


class Host:
    """A host whose agent says what the test puts into `says`; an error there is a lost connection."""

    def __init__(self, name: str, before: NodeStatus | None = None, *, is_alive: bool = True) -> None:
        self.shell, self.before, self.is_alive = SimpleNamespace(name=name), before, is_alive
        self.asked, self.specs = 0, list[NodeSpec]()
        self.says: SimpleQueue[NodeStatus | UnreachableError | None] = SimpleQueue()

    def agent(self, token: str) -> tuple[NodeStatus | None, bool]:
        self.asked += 1
        return self.before, self.is_alive

    def start(self, spec: NodeSpec, archive: Path) -> None:
        self.specs.append(spec)

    def follow(self, token: str) -> Iterator[NodeStatus | None]:
        while True:
            said = self.says.get()
            if isinstance(said, UnreachableError):
                raise said
            yield said


class Lab:
    """Machines of a cluster, the first of which is the head."""

    def __init__(self, folder: Path, hosts: Sequence[Host]) -> None:
        self.hosts = {each.shell.name: each for each in hosts}
        self.machines = [
            Machine(id=name, token=name, group="workers" if number else "head", state="running")
            for number, name in enumerate(self.hosts)
        ]
        home = ClusterHome.create(Home(folder), config_of(SSH))
        place = MachinePlace(
            provider=cast(Provider, SimpleNamespace(is_rented=False)),
            host=lambda machine: cast(NodeHost, self.hosts[machine.id]),
        )
        self.starter = NodeStarter(home, config_of(SSH), place, folder, lambda line: None)

    def look_until_done(self) -> None:
        self.starter.look(self.machines)
        wait_until(self._is_done, "every node to be ready or to have failed")

    def _is_done(self) -> bool:
        self.starter.look(self.machines)
        return self.starter.is_done(self.machines)


def ready(head: str = "a:1") -> NodeStatus:
    return NodeStatus(token="t", state="ready", head=head)


def test_workers_are_asked_beside_the_head_and_started_with_its_address(tmp_path: Path) -> None:
    head, worker = Host("a"), Host("b")
    lab = Lab(tmp_path, [head, worker])
    lab.starter.look(lab.machines)
    wait_until(lambda: bool(head.specs) and worker.asked == 1, "both to be asked")
    assert worker.specs == []
    head.says.put(NodeStatus(token="t", state="setup", head="a:1"))
    wait_until(lambda: bool(worker.specs), "the worker to be started")
    assert (worker.specs[0].head, worker.specs[0].number) == ("a:1", 1)
    for host in (head, worker):
        host.says.put(ready())
    lab.look_until_done()
    assert set(lab.starter.statuses) == {"a", "b"}


def test_nodes_that_are_ready_are_only_asked(tmp_path: Path) -> None:
    hosts = [Host("a", ready()), Host("b", ready())]
    lab = Lab(tmp_path, hosts)
    lab.look_until_done()
    assert set(lab.starter.statuses) == {"a", "b"}
    assert [(host.asked, host.specs) for host in hosts] == [(1, []), (1, [])]


def test_a_node_whose_agent_is_dead_is_started_again_whatever_it_said_last(tmp_path: Path) -> None:
    head, worker = Host("a", ready("a:1"), is_alive=False), Host("b", ready(), is_alive=False)
    lab = Lab(tmp_path, [head, worker])
    lab.starter.look(lab.machines)
    wait_until(lambda: bool(head.specs), "the head to be started")
    assert worker.specs == []
    head.says.put(ready("a:2"))
    wait_until(lambda: bool(worker.specs), "the worker to be started")
    assert worker.specs[0].head == "a:2"
    worker.says.put(ready())
    lab.look_until_done()
    assert lab.starter.errors == {}


@pytest.mark.parametrize("is_over", [False, True])
def test_a_question_that_was_lost_is_repeated_until_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr(starting, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(starting, "_START_S", -1.0 if is_over else 900.0)
    head = Host("a")
    for _ in range(2):
        head.says.put(UnreachableError("cannot reach a", code="site-unreachable"))
    head.says.put(ready())
    lab = Lab(tmp_path, [head])
    lab.look_until_done()
    assert [error.message for error in lab.starter.errors.values()] == (["cannot reach a"] if is_over else [])
    assert len(head.specs) == 1


def test_a_head_that_fails_ends_the_wait_of_the_others(tmp_path: Path) -> None:
    head, worker = Host("a"), Host("b")
    lab = Lab(tmp_path, [head, worker])
    lab.starter.look(lab.machines)
    head.says.put(NodeStatus(token="t", state="failed", message="no Ray"))
    wait_until(lambda: lab._is_done() and len(lab.starter.errors) == 2, "both to have failed")
    assert [error.message for error in lab.starter.errors.values()] == ["a: no Ray", "b: the head failed"]
    assert worker.specs == []


def test_a_head_that_does_not_respond_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Host("a")

    def agent(token: str) -> None:
        raise UnreachableError("cannot reach a", code="site-unreachable")

    monkeypatch.setattr(head, "agent", agent)
    lab = Lab(tmp_path, [head])
    lab.look_until_done()
    assert lab.starter.errors["a"].message == "cannot reach a"


def test_workers_without_a_head_are_not_waited_for(tmp_path: Path) -> None:
    lab = Lab(tmp_path, [Host("a"), Host("b")])
    lab.starter.finish(lab.machines[1:])
    assert lab.hosts["b"].asked == 0


def test_closing_ends_the_wait_for_a_head(tmp_path: Path) -> None:
    worker = Host("b")
    lab = Lab(tmp_path, [Host("a"), worker])
    lab.starter.look(lab.machines)
    wait_until(lambda: worker.asked == 1, "the worker to be asked")
    lab.starter.close()
    future = lab.starter._futures["b"]
    wait_until(future.done, "the thread to end")
    assert worker.specs == []
    lab.hosts["a"].says.put(None)  # the head's thread looks whether anybody waits each time that the host replies
    wait_until(lab.starter._futures["a"].done, "the head's thread to end")


def test_a_head_whose_files_were_being_copied_when_its_start_was_given_up_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, is_copying, may_end = Host("a"), threading.Event(), threading.Event()

    def copy(config: ClusterConfig, shell: object) -> None:
        is_copying.set()
        may_end.wait(60.0)

    monkeypatch.setattr(starting, "copy_files", copy)
    lab = Lab(tmp_path, [head])
    lab.starter.look(lab.machines)
    assert is_copying.wait(60.0)
    lab.starter.close()
    may_end.set()
    head.says.put(None)
    wait_until(lab.starter._futures["a"].done, "the thread to end")
    assert head.specs == []
