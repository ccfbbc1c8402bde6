"""`windlass mason build`: a real engine, and Beaker's images in memory."""

from __future__ import annotations

import pytest

from tests.compat.mason.test_build import Store
from tests.lab.docker import DockerLab
from tests.system.images.conftest import Project
from windlass.compat.mason.build import UploadedImage, build_branch_image, read_build

pytestmark = pytest.mark.system


def test_a_branch_is_built_once_and_sent_for_each_commit(project: Project, at_docker: DockerLab) -> None:
    text = (project.folder / "Dockerfile").read_text()
    project.write(Dockerfile=text + "ARG CUDA_VERSION\nENV CUDA=$CUDA_VERSION\n", go_sh="true\n")
    name = "open-instruct-integration-test-main-cuda13"
    options, store = read_build(["--cuda-version", "13", "--workspace", "lab/main", "go.sh"]), Store()
    first = build_branch_image(options, project.folder, project.home, store, log=project.said.append)
    commit = project.git("rev-parse", "HEAD")
    assert (first.name, first.is_built, first.is_uploaded) == (f"jo/{name}", True, True)
    assert store.done == [f"upload {name} {name} lab/main: Git commit: {commit[:9]}; CUDA: 13"]
    assert "CUDA=13" in at_docker.command(
        "docker", "run", "--rm", "--network=none", name, "sh", "-c", "echo CUDA=$CUDA"
    )
    store.images[first.name] = UploadedImage(id="01A", description=f"Git commit: {commit[:9]}; CUDA: 13")
    project.commit()
    second = build_branch_image(options, project.folder, project.home, store, log=project.said.append)
    assert (second.is_built, second.is_uploaded) == (False, True)
    assert store.done[1] == "unname 01A"
    third = build_branch_image(options, project.folder, project.home, None, log=project.said.append)
    assert (third.name, third.is_built) == (name, False)
