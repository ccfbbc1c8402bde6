"""`with Cluster.up(...)` that fails: what the call made ends, what was there before stays."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.test_plan import AWS, SSH, config_of
from windlass.cluster import Cluster, api
from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Choice, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.plan import ClusterPlan, plan_up
from windlass.cluster.providers.protocol import CreateRequest, Provider
from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError, SpecError, UnreachableError, WindlassError
from windlass.record import journal
from windlass.runs.home import Home
from windlass.testing.fake_cloud import FakeCloud


class Scene:
    """A cluster whose machines are made, and whose head fails with `error`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.cloud = FakeCloud(self.clock, random.Random(0), window_s=0.0)
        self.file, self.home = folder / "cluster.yaml", Home(folder / "home")
        self.file.write_text(AWS)
        self.error: BaseException = UnreachableError("no route to the head", code="site-unreachable")
        self.closed: list[str] = []
        self.close: Callable[[], None] = lambda: self.closed.append("closed")
        self.lines: list[str] = []
        self.num_tries = 0
        monkeypatch.setenv("WINDLASS_HOME", str(self.home.path))
        monkeypatch.setattr(api, "open_place", lambda *_, **__: self.place())
        monkeypatch.setattr(api, "ensure_archive", lambda folder: folder / "windlass.pyz")

    def host(self, machine: Machine) -> NodeHost:
        """Fail as the test wants while the cluster comes up, and as a head that does not respond afterwards."""
        self.num_tries += 1
        raise self.error if self.num_tries == 1 else UnreachableError("no route", code="site-unreachable")

    def place(self) -> MachinePlace:
        return MachinePlace(provider=self.cloud, host=self.host, close=self.close)

    def up(self, **options: bool) -> BaseException:
        """Return the error of `up`."""
        with pytest.raises(BaseException) as caught:
            Cluster.up(self.file, report=self.lines.append, **options)
        return caught.value

    def cluster(self) -> ClusterHome:
        return ClusterHome.create(self.home, config_of(AWS))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", [UnreachableError("no route", code="x"), AssertionError("a bug"), KeyboardInterrupt()])
def test_what_a_failed_up_made_is_brought_down(scene: Scene, kind: BaseException) -> None:
    scene.error = kind
    assert scene.up() is kind
    assert scene.cloud.made.total() == 1
    assert scene.cloud.alive() == []
    assert scene.closed == ["closed"]
    assert "lab is not up, and is brought down" in scene.lines
    assert scene.lines[-1] == "m0 ended"
    assert Cluster.find("lab").home.state().is_closed


PAID = "what was made stays and is paid for until `windlass cluster down lab`"


@pytest.mark.parametrize("keeps", [False, True])
def test_an_error_says_what_is_paid_for_only_if_it_stays(scene: Scene, keeps: bool) -> None:
    error = scene.up(keep_on_failure=keeps)
    assert isinstance(error, UnreachableError)
    assert (error.hint == PAID) is keeps
    assert (PAID in error.__notes__) is keeps


@pytest.mark.parametrize("text", [AWS, SSH])
def test_nothing_is_made_while_a_file_is_missing_here(scene: Scene, text: str) -> None:
    scene.cloud.is_rented = text is AWS
    scene.file.write_text(text + "files: {/data: none}\n")
    error = scene.up()
    assert isinstance(error, SpecError)
    assert error.code == "file-not-found"
    assert (scene.cloud.made.total(), scene.lines) == (0, [])


def test_it_stays_where_the_caller_wants_that(scene: Scene) -> None:
    assert scene.up(keep_on_failure=True) is scene.error
    assert [each.group for each in scene.cloud.alive()] == ["head"]
    assert Cluster.find("lab").home.state().wanted == "up"


def test_a_cluster_that_had_machines_before_is_left_alone(scene: Scene) -> None:
    scene.up(keep_on_failure=True)
    scene.num_tries = 0
    assert scene.up() is scene.error
    assert [each.group for each in scene.cloud.alive()] == ["head"]


def test_a_cluster_that_may_have_machines_before_is_left_alone(scene: Scene) -> None:
    cluster = scene.cluster()
    with cluster.acting() as writer:
        writer.append("cluster.wanted", state="up", why="")
        writer.append("cluster.intent", token="1", group="head", count=1, choice={"type": "small"})
    choice = Choice(type="small")
    scene.cloud.add(CreateRequest(token="1", cluster=cluster.id, group="head", count=1, choice=choice))
    assert scene.up() is scene.error
    assert len(scene.cloud.alive()) == 1


def test_what_another_command_makes_is_left_alone(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LOCK_WAIT_S", 0.1)
    with scene.cluster().acting():
        error = scene.up()
        assert isinstance(error, PreconditionError)
        assert error.code == "in-use"
    assert scene.lines == []


def test_a_file_that_does_not_fit_what_may_be_up_ends_nothing(scene: Scene) -> None:
    cluster = scene.cluster()
    with cluster.acting() as writer:
        writer.append("cluster.wanted", state="down", why="")
    scene.file.write_text(AWS.replace("us-west-2", "eu-west-1"))
    error = scene.up()
    assert isinstance(error, PreconditionError)
    assert error.code == "cluster-changed"
    assert (scene.closed, scene.lines, cluster.state().is_closed) == ([], [], False)


def test_what_another_command_made_before_this_one_held_the_cluster_is_left_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(config: ClusterConfig, provider: Provider) -> ClusterPlan:
        monkeypatch.setattr(api, "plan_up", plan_up)
        scene.up(keep_on_failure=True)
        scene.num_tries = 0
        return plan_up(config, provider)

    monkeypatch.setattr(api, "plan_up", plan)
    assert scene.up() is scene.error
    assert [each.group for each in scene.cloud.alive()] == ["head"]


def test_an_end_that_fails_is_a_note_of_the_first_error(scene: Scene) -> None:
    def refuse() -> None:
        raise WindlassError("the group is in use", code="provider-refused")

    scene.close = refuse
    assert scene.up() is scene.error
    text = "lab was not brought down: the group is in use; `windlass cluster down lab` does it"
    assert text in scene.error.__notes__
    assert scene.lines[-1] == text
