from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lab.docker import DockerLab
from tests.system.images.conftest import TINY, Project
from windlass.pin.image import building

pytestmark = pytest.mark.system


@pytest.mark.parametrize("engine", ["podman", "buildah"])
def test_it_builds_once_and_takes_the_dependencies_from_its_cache(
    engine: str, project: Project, at_docker: DockerLab, need: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    need("podman")
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    at_docker.command("sh", "-c", f"docker save {TINY} | podman load --quiet")
    first, built = project.build(on=engine)
    assert project.build(on=engine)[1].image_id == built.image_id
    project.write(train_py="print('two')\n")
    second, changed = project.build(on=engine)
    assert (first.key != second.key, changed.is_hit, project.num_builds) == (True, False, 2)
    assert building.num_cached(project.log_of(second)) >= 3
    at_docker.command("podman", "rmi", "--all", "--force")
