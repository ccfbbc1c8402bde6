"""What is wrong with a Dockerfile, an image or an engine is said, and nothing of a failed build is left."""

from __future__ import annotations

import pytest

from tests.lab.docker import DockerLab
from tests.system.images.conftest import TINY, Project
from windlass.core.errors import WindlassError

pytestmark = pytest.mark.system


def refusal(project: Project, *overrides: str) -> WindlassError:
    with pytest.raises(WindlassError) as caught:
        project.build(*overrides)
    assert project.unfinished() == []
    return caught.value


def test_a_failing_step_is_shown(project: Project, at_docker: DockerLab) -> None:
    before = set(at_docker.command("docker", "images", "--all", "--quiet").split())
    project.write(Dockerfile=f"FROM {TINY}\nRUN echo first\nRUN echo 'no such wheel'; exit 3\n")
    error = refusal(project)
    lines = error.message.splitlines()
    assert error.code == "build-failed"
    assert lines[0].endswith("failed at `RUN echo 'no such wheel'; exit 3`:")
    assert "  no such wheel" in lines
    assert "exit code: 3" in lines[-1]
    assert set(at_docker.command("docker", "images", "--all", "--quiet").split()) == before


def test_files_and_stages_that_are_not_there(project: Project) -> None:
    error = refusal(project, "env.image=Dockerfile.gpu")
    assert (error.code, error.hint) == ("code-not-in-commit", "did you mean `Dockerfile`?")
    (project.folder / "Dockerfile.gpu").write_text("FROM scratch\n")
    project.git("add", "--all")
    assert refusal(project, "env.image.target=none").code == "dirty-tree"
    project.commit()
    assert refusal(project, "env.image={dockerfile: Dockerfile, target: gpu}").code == "unknown-name"
    assert refusal(project, "env.image={dockerfile: Dockerfile, context: docs}").code == "code-not-in-commit"


def test_a_base_for_another_architecture(
    project: Project, at_docker: DockerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_BUILDKIT", "1")
    arguments = ["--platform=linux/arm64", "--tag=other-arch", "-"]
    at_docker.command("docker", "build", *arguments, stdin=b"FROM scratch\nCMD nothing\n")
    error = refusal(project, "env.image=other-arch")
    assert error.code == "wrong-architecture"
    assert "is for linux/arm64, not for linux/amd64" in error.message


def test_a_tag_of_ours_that_somebody_moved_is_refused(project: Project, at_docker: DockerLab) -> None:
    pin, built = project.build()
    at_docker.command("docker", "tag", TINY, f"{pin.name}:k-{pin.key[:24]}")
    error = refusal(project)
    assert (error.code, built.image_id in error.message) == ("input-changed", True)


def test_an_engine_that_is_down(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write(Dockerfile="FROM scratch\nCOPY train.py /\n")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project.folder}/no-such.sock")
    error = refusal(project)
    assert (error.code, "set DOCKER_HOST" in error.hint) == ("engine-failed", True)
