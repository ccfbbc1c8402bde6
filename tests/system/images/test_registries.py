from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.docker import DockerLab
from tests.system.images.conftest import TINY, Project
from tests.system.images.faulty import FaultyRegistry
from windlass.core.errors import WindlassError
from windlass.pin.code.pinned import NO_CODE
from windlass.pin.image import building, engine
from windlass.pin.image.engine import find_engine
from windlass.pin.image.ensuring import ImageMaker, ensure_image
from windlass.pin.image.naming import parse_reference
from windlass.pin.image.registry import fetch_digest

pytestmark = pytest.mark.system

NOISE = b"FROM scratch\nCOPY noise /\n"


@pytest.fixture
def faulty(registry: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyRegistry]:
    """The lab's registry behind a proxy that spoils answers; nobody waits between tries."""
    monkeypatch.setattr(engine, "_PAUSES_S", (0.0, 0.0, 0.0))
    with FaultyRegistry(registry) as found:
        yield found


def at(project: Project, address: str) -> str:
    return f"env.image={{dockerfile: Dockerfile, registry: {address}/{project.folder.name}}}"


@pytest.fixture(scope="module")
def other_engine(docker: DockerLab, tiny: str) -> Iterator[DockerLab]:
    """An engine that has never seen the project."""
    lab = DockerLab(name=f"{docker.name}-other")
    docker.command("docker", "save", "--output", str(docker.folder / "tiny.tar"), tiny)
    try:
        lab.up()
        lab.command("docker", "load", "--quiet", "--input", str(docker.folder / "tiny.tar"))
        yield lab
    finally:
        lab.down()


def test_an_engine_that_never_saw_the_project_pulls_what_is_there_and_takes_layers_from_the_registry(
    project: Project, registry: str, other_engine: DockerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin, built = project.build(at(project, registry))
    for name, value in other_engine.env.items():
        monkeypatch.setenv(name, value)
    again, pulled = project.build(at(project, registry))
    assert (again.key, pulled.is_hit, pulled.image_id, project.num_builds) == (pin.key, True, built.image_id, 1)
    other_engine.command("docker", "image", "rm", "--force", pulled.image_id)
    other_engine.command("docker", "builder", "prune", "--all", "--force")
    project.write(train_py="print('two')\n")
    changed, rebuilt = project.build(at(project, registry))
    assert (rebuilt.is_hit, project.num_builds) == (False, 2)
    log = project.log_of(changed)
    assert "importing cache manifest" in log
    assert building.num_cached(log) >= 3
    assert (
        other_engine.command("docker", "run", "--rm", "--network=none", rebuilt.reference, "cat", "train.py")
        == "print('two')"
    )


def test_a_named_image_is_used_by_digest_whatever_its_tag_becomes(
    project: Project, pushed: str, registry: str, at_docker: DockerLab
) -> None:
    name = f"{registry}/{pushed}"
    pin, found = project.build(f"env.image={name}")
    assert (pin.digest, found.reference) == (found.digest, f"{name.removesuffix(':1')}@{pin.digest}")
    at_docker.command("docker", "tag", TINY, name)
    at_docker.command("docker", "push", "--quiet", name)
    at_docker.command("docker", "image", "rm", name, found.reference)
    maker = ImageMaker(engine=find_engine("docker"), code=NO_CODE, folder=project.folder, cache=project.home.cache)
    assert ensure_image(pin, maker).image_id == found.image_id


def test_it_is_pushed_by_key_and_by_commit_and_a_key_that_somebody_pushed_over_is_refused(
    project: Project, registry: str, at_docker: DockerLab
) -> None:
    pin, built = project.build(at(project, registry))
    commit = project.git("rev-parse", "HEAD")[:12]
    name = f"{registry}/{project.folder.name}:k-{pin.key[:24]}"
    assert fetch_digest(parse_reference(name)) == built.digest
    assert fetch_digest(parse_reference(f"{registry}/{project.folder.name}:{commit}")) == built.digest
    at_docker.command("docker", "tag", TINY, name)
    at_docker.command("docker", "push", "--quiet", name)
    at_docker.command("docker", "image", "rm", "--force", built.image_id, name)
    with pytest.raises(WindlassError) as caught:
        project.build(at(project, registry))
    assert (caught.value.code, name in caught.value.message) == ("input-changed", True)


@pytest.fixture
def pushed(project: Project, registry: str, at_docker: DockerLab) -> str:
    """An image that only the registry has, by its name there."""
    name = f"{project.folder.name}:1"
    context = project.folder.with_name("noisy")
    context.mkdir()
    (context / "noise").write_bytes(os.urandom(300_000))
    at_docker.command("docker", "build", "--quiet", f"--tag={registry}/{name}", "-f-", str(context), stdin=NOISE)
    at_docker.command("docker", "push", "--quiet", f"{registry}/{name}")
    at_docker.command("docker", "image", "rm", "--force", f"{registry}/{name}")
    return name


def test_what_a_registry_refuses_or_spoils_is_not_used_and_a_cut_is_tried_again(
    project: Project, pushed: str, at_docker: DockerLab, faulty: FaultyRegistry
) -> None:
    name = f"{faulty.address}/{pushed}"
    faulty.fault = lambda *_: "401"
    with pytest.raises(WindlassError) as caught:
        project.build(f"env.image={name}")
    assert (caught.value.code, caught.value.hint) == ("remote-forbidden", f"docker login {faulty.address}")
    faulty.fault = lambda method, path: "corrupt" if method == "GET" and "/blobs/" in path else ""
    with pytest.raises(WindlassError) as caught:
        project.build(f"env.image={name}")
    assert caught.value.code == "digest-mismatch"
    assert at_docker.command("docker", "images", "--quiet", name) == ""
    cuts = iter(["cut"] * 2 + ["500"])
    faulty.fault = lambda method, path: next(cuts, "") if method == "GET" and "/blobs/" in path else ""
    assert project.build(f"env.image={name}")[1].image_id
    assert next(cuts, "none left") == "none left"


def test_a_push_that_fails_costs_no_build(project: Project, at_docker: DockerLab, faulty: FaultyRegistry) -> None:
    faulty.fault = lambda method, path: "401" if method == "PUT" and "/manifests/" in path else ""
    with pytest.raises(WindlassError) as caught:
        project.build(at(project, faulty.address))
    assert caught.value.code == "remote-forbidden"
    assert "docker push" in caught.value.message
    faulty.fault = lambda *_: ""
    _, built = project.build(at(project, faulty.address))
    assert (built.is_hit, project.num_builds) == (True, 1)
    assert built.digest


def test_what_no_registry_has(project: Project, registry: str) -> None:
    with pytest.raises(WindlassError) as caught:
        project.build(f"env.image={registry}/nobody/has:this")
    assert caught.value.code == "image-not-found"
    assert "and docker does not have it" in caught.value.message
