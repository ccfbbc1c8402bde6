"""Many who need one image, and those who are killed while they build, pull or push it: never a half-valid image."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.docker import DockerLab
from tests.system.images.conftest import TINY, Project
from tests.system.images.faulty import FaultyRegistry
from windlass.pin.image.ensuring import ensure_image
from windlass.pin.image.naming import parse_reference
from windlass.pin.image.pinned import BuiltImage
from windlass.pin.image.registry import fetch_digest

pytestmark = pytest.mark.system

_FORK = multiprocessing.get_context("fork")
_ROUNDS = 3
SLOW = f"FROM {TINY}\nWORKDIR /app\nCOPY deps.txt ./\nCOPY . ./\nRUN cat train.py >/half; sleep 0.5; cat train.py >/whole\n"


class Aside:
    """Something done in a process of its own, with a session of its own; `said` is what it told and what it got."""

    def __init__(self, work: Callable[[Callable[[str], None]], BuiltImage], file: Path) -> None:
        self._file = file
        self._work = work
        self.process = _FORK.Process(target=self._run)
        self.process.start()

    def _run(self) -> None:
        os.setsid()
        lines: list[str] = []
        built = self._work(lines.append)
        self._file.write_text("\n".join([*lines, f"got {built.image_id}"]))

    @property
    def said(self) -> list[str]:
        return self._file.read_text().splitlines()

    def strike(self, dice: random.Random, within_s: float) -> None:
        """Kill it somewhen, alone or with all that it started."""
        time.sleep(dice.uniform(0.05, within_s))
        if self.process.pid and self.process.is_alive():
            kill = os.kill if dice.random() < 0.5 else os.killpg
            try:
                kill(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self.process.pid, signal.SIGKILL)  # it has no session of its own yet
        self.process.join()


@pytest.fixture
def dice(record_property: Callable[[str, object], None]) -> random.Random:
    seed = random.randrange(1 << 30)
    record_property("seed", seed)
    return random.Random(seed)


@pytest.fixture
def slow_registry(registry: str) -> Iterator[FaultyRegistry]:
    """The lab's registry, where every layer takes a while."""

    def waits(method: str, path: str) -> str:
        if "/blobs/" in path and method != "HEAD":
            time.sleep(0.1)
        return ""

    with FaultyRegistry(registry) as found:
        found.fault = waits
        yield found


def test_twenty_who_need_an_image_build_it_once(project: Project, tmp_path: Path) -> None:
    project.write(Dockerfile=SLOW)
    pin, maker = project.pinned()
    asked = [
        Aside(lambda log: ensure_image(pin, replace(maker, log=log)), tmp_path / f"said-{number}")
        for number in range(20)
    ]
    for each in asked:
        each.process.join()
    assert [each.process.exitcode for each in asked] == [0] * 20
    assert sum(line.startswith("building the image") for each in asked for line in each.said) == 1
    assert len({each.said[-1] for each in asked}) == 1
    assert project.unfinished() == []


def kill_builders(
    project: Project, tmp_path: Path, at_docker: DockerLab, cat: Callable[..., str], dice: random.Random, rounds: int
) -> None:
    for number in range(rounds):
        project.write(Dockerfile=SLOW, train_py=f"print({number})\n")
        Aside(lambda _: project.build()[1], tmp_path / "said").strike(dice, 2.0)
        pin, built = project.build()
        labels = at_docker.inspect(built.image_id)["Config"]
        assert isinstance(labels, dict)
        assert labels["Labels"]["windlass.key"] == pin.key
        assert cat(built.reference, "/app/train.py", "/half", "/whole").split() == [f"print({number})"] * 3
        assert project.unfinished() == []


def test_killed_builders_leave_nothing_that_looks_finished(
    project: Project, tmp_path: Path, at_docker: DockerLab, cat: Callable[..., str], dice: random.Random
) -> None:
    kill_builders(project, tmp_path, at_docker, cat, dice, _ROUNDS)


def kill_pulls(
    project: Project, tmp_path: Path, lab: DockerLab, slow: FaultyRegistry, dice: random.Random, rounds: int
) -> None:
    """Each round pulls by digest what only the registry has, is killed, and pulls in peace."""
    for number in range(3):
        (project.folder / f"noise{number}").write_bytes(os.urandom(100_000))
    project.write(Dockerfile="FROM scratch\nCOPY noise0 /\nCOPY noise1 /\nCOPY noise2 /\n")
    _, built = project.build()
    name = f"{slow.address}/{project.folder.name}:1"
    lab.command("docker", "tag", built.image_id, name)
    lab.command("docker", "push", "--quiet", name)
    for _ in range(rounds):
        lab.command("docker", "image", "rm", "--force", built.image_id)
        lab.command("docker", "builder", "prune", "--all", "--force")
        Aside(lambda _: project.build(f"env.image={name}")[1], tmp_path / "said").strike(dice, 1.0)
        _, pulled = project.build(f"env.image={name}")
        assert pulled.image_id == built.image_id
    container = lab.command("docker", "create", built.image_id, "nothing")
    try:
        lab.command("docker", "cp", f"{container}:/noise2", str(tmp_path / "noise"))
    finally:
        lab.command("docker", "rm", container)
    assert (tmp_path / "noise").read_bytes() == (project.folder / "noise2").read_bytes()


def test_killed_pulls_leave_no_half_image(
    project: Project, tmp_path: Path, at_docker: DockerLab, slow_registry: FaultyRegistry, dice: random.Random
) -> None:
    kill_pulls(project, tmp_path, at_docker, slow_registry, dice, _ROUNDS)


def kill_pushes(
    project: Project, tmp_path: Path, lab: DockerLab, slow: FaultyRegistry, dice: random.Random, rounds: int
) -> None:
    """Each round builds and pushes, is killed, and does so in peace; then the registry alone has the image."""
    image = f"env.image={{dockerfile: Dockerfile, registry: {slow.address}/{project.folder.name}}}"
    for _ in range(rounds):
        (project.folder / "noise").write_bytes(os.urandom(100_000))
        project.write(Dockerfile="FROM scratch\nCOPY noise /\nCOPY train.py /\n")
        Aside(lambda _: project.build(image)[1], tmp_path / "said").strike(dice, 1.5)
        pin, built = project.build(image)
        there = f"{slow.address}/{project.folder.name}:k-{pin.key[:24]}"
        assert fetch_digest(parse_reference(there)) == built.digest
        lab.command("docker", "image", "rm", "--force", built.image_id)
        assert lab.command("docker", "images", "--quiet", built.image_id) == ""
        lab.command("docker", "pull", "--quiet", there)
        assert lab.inspect(there)["Id"] == built.image_id
        assert project.unfinished() == []


def test_killed_pushes_leave_no_half_image(
    project: Project, tmp_path: Path, at_docker: DockerLab, slow_registry: FaultyRegistry, dice: random.Random
) -> None:
    kill_pushes(project, tmp_path, at_docker, slow_registry, dice, _ROUNDS)


@pytest.mark.soak
def test_many_kills(
    project: Project,
    tmp_path: Path,
    at_docker: DockerLab,
    cat: Callable[..., str],
    slow_registry: FaultyRegistry,
    dice: random.Random,
    real_packages: None,
) -> None:
    kill_builders(project, tmp_path, at_docker, cat, dice, 50)
    kill_pulls(project, tmp_path, at_docker, slow_registry, dice, 25)
    kill_pushes(project, tmp_path, at_docker, slow_registry, dice, 25)
