from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable

import pytest

from tests.lab.docker import BASE, DockerLab
from tests.system.images.conftest import TINY, Project
from windlass.core.errors import PreconditionError
from windlass.pin.image import building
from windlass.pin.image.building import Builder

pytestmark = pytest.mark.system


def test_an_unchanged_commit_builds_nothing_and_a_new_one_gets_a_tag(project: Project, at_docker: DockerLab) -> None:
    project.git("remote", "add", "origin", "https://me:token@example.org/lab/thing.git")
    project.write(requirements_txt="numpy==2.0\n")
    pin, built = project.build()
    again, found = project.build()
    assert (built.is_hit, found.is_hit, found.reference, again) == (False, True, built.reference, pin)
    first, tree = project.git("rev-parse", "HEAD"), project.git("rev-parse", "HEAD^{tree}")
    commit = project.commit()
    _, later = project.build()
    assert (later.is_hit, later.image_id, project.num_builds) == (True, built.image_id, 1)
    image = at_docker.inspect(built.image_id)
    assert isinstance(image["RepoTags"], list)
    assert f"{pin.name}:{commit[:12]}" in image["RepoTags"]
    check_labels(image, pin.key, first, tree)
    assert pin.name == "windlass/thing-main"


def check_labels(image: dict[str, object], key: str, commit: str, tree: str) -> None:
    """They say where it came from, without what is nobody's business."""
    config = image["Config"]
    assert isinstance(config, dict)
    labels = config["Labels"]
    assert (labels["windlass.key"], labels["windlass.tree"]) == (key, tree)
    assert labels["windlass.lock"] == hashlib.sha256(b"numpy==2.0\n").hexdigest()
    assert labels["org.opencontainers.image.revision"] == commit
    assert labels["org.opencontainers.image.source"] == "https://example.org/lab/thing.git"
    assert "token" not in json.dumps(labels)


def test_new_code_takes_the_dependencies_from_the_cache(project: Project, cat: Callable[..., str]) -> None:
    first, _ = project.build()
    project.write(train_py="print('two')\n")
    second, built = project.build()
    assert (first.key != second.key, project.num_builds) == (True, 2)
    assert cat(built.reference, "/app/train.py") == "print('two')"
    assert building.num_cached(project.log_of(first)) <= 2  # of what other projects have as well
    assert building.num_cached(project.log_of(second)) >= 3
    project.write(deps_txt="torch==2.10.0\n")
    third, built = project.build()
    assert building.num_cached(project.log_of(third)) <= 2
    assert cat(built.reference, "/deps") == "torch==2.10.0"


def test_neither_the_working_folder_nor_what_the_ignore_file_names_is_built(
    project: Project, at_docker: DockerLab
) -> None:
    (project.folder / "train.py").write_text("print('edited')\n")
    (project.folder / "new.py").write_text("")
    with pytest.raises(PreconditionError, match=r"new\.py \(untracked\)") as caught:
        project.build()
    assert "train.py" in caught.value.message
    project.git("stash", "--include-untracked")
    pin, built = project.build()
    project.write(notes_log="other\n")
    assert project.build()[0].key == pin.key
    listed = at_docker.command(
        "docker", "run", "--rm", "--network=none", built.reference, "sh", "-c", "cat train.py; ls -A"
    )
    assert listed.split("\n") == ["print('one')", ".dockerignore", "Dockerfile", "deps.txt", "train.py"]


def test_packages_are_asked_of_the_image(project: Project, real_packages: None) -> None:
    project.write(Dockerfile=f"FROM {BASE}\nCOPY . /app\n")
    _, built = project.build()
    assert any(each.startswith("deb:python3-minimal=3.") for each in built.packages)
    assert any(each.startswith("python==3.") for each in built.packages)
    project.write(Dockerfile="FROM scratch\nCOPY train.py /\n")
    _, built = project.build()
    assert (built.packages, built.workdir) == ((), "/"), "an image without a shell has nobody to ask"


def test_a_secret_is_in_no_layer(project: Project, at_docker: DockerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "canary-6b1e7a52-never-in-a-layer"
    monkeypatch.setenv("WINDLASS_SECRET_TOKEN", canary)
    project.write(
        Dockerfile=f"FROM {TINY}\nRUN --mount=type=secret,id=TOKEN wc -c </run/secrets/TOKEN >/length\n",
        e_yaml="name: t\nenv: {image: {dockerfile: Dockerfile, secrets: TOKEN}}\ntasks: {train: {run: 'true'}}\n",
    )
    pin, built = project.build()
    saved = project.folder.parent / "saved.tar"
    at_docker.command("docker", "save", "--output", str(saved), built.image_id)
    with tarfile.open(saved) as image:
        found = {name: image.extractfile(name) for name in image.getnames()}
        contents = {name: file.read() for name, file in found.items() if file is not None}
    assert not [name for name, content in contents.items() if canary.encode() in content]
    lengths = []
    for name, content in contents.items():
        if name.endswith("layer.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as layer:
                held = layer.extractfile("length") if "length" in layer.getnames() else None
                lengths += [held.read().split()] if held is not None else []
    assert lengths == [[str(len(canary)).encode()]]
    assert canary not in project.log_of(pin)
    assert canary not in json.dumps(at_docker.inspect(built.image_id))


def test_variants_are_images_of_their_own(project: Project, at_docker: DockerLab) -> None:
    project.write(
        Dockerfile=f"FROM {TINY} AS cpu\nARG CUDA=none\nENV MADE=$CUDA\nFROM cpu AS tools\nENV TOOLS=yes\n",
        e_yaml="name: t\nenv: {image: {dockerfile: Dockerfile, target: cpu, variants: {cu128: {args: {CUDA: '12.8'}}, "
        "all: {target: tools, args: {CUDA: '13.0'}}}}}\ntasks: {train: {run: 'true'}}\n",
    )
    asked: list[tuple[str, ...]] = [(), ("env.image.variant=cu128",), ("env.image.variant=all",)]
    images = [at_docker.inspect(project.build(*each)[1].image_id) for each in asked]
    made = [{each for each in variables(image) if not each.startswith("PATH=")} for image in images]
    assert made == [{"MADE=none"}, {"MADE=12.8"}, {"MADE=13.0", "TOOLS=yes"}]
    commit = project.git("rev-parse", "HEAD")[:12]
    tags = images[1]["RepoTags"]
    assert isinstance(tags, list)
    assert [tag.rpartition(":")[2] for tag in tags if commit in tag] == [f"{commit}-cu128"]


def variables(image: dict[str, object]) -> list[str]:
    config = image["Config"]
    assert isinstance(config, dict)
    return list(config["Env"])


def test_the_classic_builder(project: Project, cat: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    classic = Builder(flavour="classic", needs_host_network=True)
    monkeypatch.setattr("windlass.pin.image.ensuring.find_builder", lambda _: classic)
    project.build()
    project.write(train_py="print('two')\n")
    pin, built = project.build()
    assert building.num_cached(project.log_of(pin)) == 3
    assert cat(built.reference, "/app/train.py") == "print('two')"


def test_a_base_that_changes_is_another_image(project: Project, at_docker: DockerLab) -> None:
    name = f"windlass/moving-{project.folder.name}"
    at_docker.command("docker", "tag", TINY, name)
    project.write(Dockerfile=f"FROM {name}\nCOPY . /app\n")
    first, _ = project.build()
    at_docker.command("docker", "import", "-", name, stdin=b"\0" * 10240)
    second, _ = project.build()
    assert first.bases != second.bases
    assert first.key != second.key
