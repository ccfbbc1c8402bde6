"""`down` does not wait for what lists may hide if every machine that was ever made is known; otherwise it does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cluster.test_plan import AWS, config_of
from tests.cluster.test_reconcile import Lab
from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.cluster import up
from windlass.cluster.config import HEAD as HEAD_GROUP
from windlass.cluster.decide import Close, View, decide
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.state import ClusterState, Intent
from windlass.cluster.up import bring_down, bring_up
from windlass.core.errors import PreconditionError, UnreachableError

WINDOW_S = 300.0
HEAD = Machine(id="h1", token="1", group="head", state="ended", ended_at=1.0)
WORKER = Machine(id="w1", token="2", group="workers", state="ended", ended_at=1.0)
MADE = Intent(token="1", group="head", count=1, choice=Choice(type="small"), asked_at=0.0, status="made")
VOID = replace(MADE, token="3", status="void")


def state_of(*nodes: Machine, intents: Sequence[Intent] = (MADE,), accounted: str = "") -> ClusterState:
    return ClusterState(
        wanted="down",
        nodes={each.id: each for each in nodes},
        intents={each.token: each for each in intents},
        accounted=accounted,
    )


@pytest.mark.parametrize(
    ("state", "closes_at_once"),
    [
        (state_of(intents=()), True),
        (state_of(intents=(VOID,)), True),
        (state_of(HEAD, WORKER, accounted="h1"), True),
        (state_of(HEAD, WORKER), False),
        (state_of(HEAD, replace(HEAD, id="h2"), accounted="h2"), False),
        (state_of(HEAD, intents=(MADE, replace(VOID, status="made")), accounted="h1"), False),
        (state_of(HEAD, intents=(replace(MADE, count=2),), accounted="h1"), False),
    ],
)
def test_a_cluster_is_closed_at_once_only_if_no_machine_can_be_unknown(
    state: ClusterState, closes_at_once: bool
) -> None:
    def closes(listed_s: float, nodes: tuple[Machine, ...] = ()) -> bool:
        view = View(nodes=nodes, listed_s=listed_s, empty_s=None if nodes else 10.0)
        return decide(state, view, {}, window_s=WINDOW_S, now_s=listed_s) == [Close()]

    assert closes(10.0) is closes_at_once
    assert closes(10.0 + WINDOW_S)
    assert not closes(10.0 + WINDOW_S, (replace(WORKER, id="w9", state="running"),))
    living = replace(state, nodes={**state.nodes, "w9": replace(WORKER, id="w9", state="running")})
    view = View(nodes=(), listed_s=10.0, empty_s=10.0, asked_s={"w9": 10.0})
    assert Close() not in decide(living, view, {}, window_s=WINDOW_S, now_s=10.0)
    asked = replace(state, intents={**state.intents, "9": replace(VOID, token="9", status="open")})
    assert Close() not in decide(asked, replace(view, listed_s=1000.0), {}, window_s=WINDOW_S, now_s=1000.0)


class Shell:
    """Head that seals and unseals its journal of machines."""

    name, is_local = "head", False

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.machines: list[Machine] = []
        self.requests: list[Intent] = []
        self.error: Exception | None = None

    def run(self, argv: Sequence[str], **_: object) -> ShellResult:
        assert argv[0] == "sh"
        self.commands.append(argv[5])
        if self.error is not None:
            raise self.error
        lines: list[dict[str, Any]] = [{"kind": "machine", **asdict(each)} for each in self.machines]
        lines += [{"kind": "tried", **asdict(each)} for each in self.requests]
        return ShellResult(0, "".join(json.dumps(line) + "\n" for line in lines), "")


class Scene(Lab):
    """A cluster with a head and a worker that the head made, and that no list shows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        monkeypatch.setattr(up, "SystemClock", lambda: self.clock)
        self.cloud.window_s, self.lines = WINDOW_S, list[str]()
        self.shell = Shell()
        self.place = MachinePlace(
            provider=self.cloud, host=lambda machine: NodeHost(cast(SiteShell, self.shell), self.home.id)
        )
        self.want("up")
        with self.home.acting() as journal:
            choice = {"type": "small"}
            journal.append("cluster.intent", token="1", group="head", count=1, choice=choice)
            self.make("head", "1")
            journal.append("cluster.node", node=asdict(self.cloud.alive()[0]))
            journal.append("cluster.resolved", token="1", status="made")
        self.cloud.hidden_s = 100.0
        self.make("workers", "2")
        self.shell.machines = [each for each in self.cloud.alive() if each.group == "workers"]
        self.shell.requests = [replace(MADE, token="2", group="workers")]

    def down(self) -> float:
        """Bring it down; return the seconds that it took."""
        began_s = self.clock.monotonic()
        bring_down(self.home, config_of(AWS), self.place, report=self.lines.append)
        assert self.cloud.alive() == []
        return self.clock.monotonic() - began_s


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_machine_that_only_the_head_knows_is_ended_without_the_wait(scene: Scene) -> None:
    assert 90.0 < scene.down() < 120.0  # until EC2 confirms the end of what it hid
    assert scene.shell.commands == ["node-seal"]
    assert scene.lines == ["m0 ended", "m1 ended"]


def test_a_head_without_workers_is_down_at_once(scene: Scene) -> None:
    scene.cloud.kill("m1")
    scene.cloud.hidden_s = 0.0
    scene.cloud.machines["m1"].visible_s = 0.0
    assert scene.down() < 10.0


@pytest.mark.parametrize("what", ["open", "unreachable", "old", "two heads"])
def test_otherwise_it_waits_and_says_why_where_that_can_be_changed(scene: Scene, what: str) -> None:
    if what == "open":
        scene.shell.machines, scene.shell.requests = [], [replace(MADE, token="2", group="workers", status="open")]
    elif what == "unreachable":
        scene.shell.error = UnreachableError("no route to the head", code="site-unreachable")
    elif what == "old":
        scene.shell.error = PreconditionError("head: `node-seal` failed: no output", code="invalid-reply")
    else:
        scene.cloud.hidden_s = 0.0
        scene.make("head", "9")
        with scene.home.acting() as journal:
            for each in scene.cloud.alive():
                if each.group == "head":
                    journal.append("cluster.node", node=asdict(each))
    assert scene.down() > WINDOW_S
    says = any("is down once nothing of it was listed for 300 s" in line for line in scene.lines)
    assert says is (what in {"unreachable", "old"})


class Cut(BaseException):
    """The end of the process."""


def test_up_after_a_down_that_was_cut_short_goes_on_if_the_sealed_head_is_gone(scene: Scene) -> None:
    scene.shell.error = Cut()  # type: ignore[assignment]
    with pytest.raises(Cut):
        scene.down()
    scene.cloud.kill("m0")
    scene.cloud.hidden_s = 0.0

    def host(machine: Machine) -> NodeHost:
        assert machine.id != "m0", "a machine that is gone is asked"
        raise UnreachableError("cannot reach the new head", code="site-unreachable")

    place = MachinePlace(provider=scene.cloud, host=host)
    with pytest.raises(UnreachableError, match="cannot reach the new head"):
        bring_up(scene.home, config_of(AWS), place, archive=Path("none"), report=print, clock=scene.clock)
    assert scene.home.state().sealing == ""
    assert scene.home.state().living(HEAD_GROUP)[0].id != "m0"


def test_up_after_a_down_that_was_cut_short_lets_the_head_make_machines_again(scene: Scene) -> None:
    scene.shell.error = Cut()  # type: ignore[assignment]
    with pytest.raises(Cut):
        scene.down()
    assert scene.home.state().sealing == "m0"
    scene.shell.error = UnreachableError("no route to the head", code="site-unreachable")
    with pytest.raises(UnreachableError):
        bring_up(scene.home, config_of(AWS), scene.place, archive=Path("none"), report=print, clock=scene.clock)
    assert scene.home.state().wanted == "up"
    assert scene.home.state().sealing == "m0"
    assert scene.shell.commands == ["node-seal", "node-unseal"]
    scene.shell.error = None
    scene.shell.machines, scene.shell.requests = [], []
    with pytest.raises(IndexError):  # the shell has nothing for what comes next
        bring_up(scene.home, config_of(AWS), scene.place, archive=Path("none"), report=print, clock=scene.clock)
    assert scene.shell.commands == ["node-seal", "node-unseal", "node-unseal"]
    assert scene.home.state().sealing == ""
