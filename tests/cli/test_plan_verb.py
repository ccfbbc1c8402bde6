"""`windlass plan`: a page whatever the tree looks like, all errors at once, and no silent questions over the network."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.core.errors import UnreachableError
from windlass.launcher.stage import image
from windlass.pin.image import pinning

EXPERIMENT = """\
name: play
code: .
env: {vars: {FOO: one, BEAKER_MINE: two}}
tasks: {main: {run: 'true', vars: {BAR: three}}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "play"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "e.yaml").write_text(EXPERIMENT)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "Dockerfile").write_text("FROM example.org/base:1\n")
    line = "git init -q -b main . && git add . && git -c user.name=t -c user.email=t@t commit -qm one"
    subprocess.run(["/bin/sh", "-ec", line], cwd=folder, check=True)
    return folder


def unpinned(folder: Path) -> set[str]:
    done = subprocess.run(["git", "for-each-ref"], cwd=folder, capture_output=True, text=True, check=True)
    loose = subprocess.run(["git", "count-objects"], cwd=folder, capture_output=True, text=True, check=True)
    return {done.stdout, loose.stdout}


def test_a_dirty_tree_is_planned_and_a_launch_of_it_refused(windlass: Windlass, project: Path) -> None:
    (project / "train.py").write_text("print(2)\n")
    before = unpinned(project)
    done = windlass("plan", "e.yaml")
    assert (done.code, done.err) == (0, "")
    assert "differs from commit" in done.out
    assert "\n               train.py\n" in done.out
    assert (
        f"  - a launch would be refused: 1 file differs from the last commit in {project}: train.py; commit them, or"
        in done.out
    )
    assert unpinned(project) == before, "a plan leaves nothing behind"
    assert json.loads(windlass("plan", "e.yaml", "--json").out)["notes"][0].startswith("a launch would be refused: ")
    assert windlass("launch", "e.yaml").code == 8
    assert "a launch would be refused" not in windlass("plan", "e.yaml", "--snapshot").out


def test_a_folder_without_a_repository_and_one_without_a_commit(
    windlass: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(EXPERIMENT)
    assert f"a launch would be refused: {tmp_path} is not in a git repository" in windlass("plan", "e.yaml").out
    subprocess.run(["git", "init", "-q", "."], check=True)
    assert (
        f"a launch would be refused: the repository at {tmp_path} has no commit yet" in windlass("plan", "e.yaml").out
    )


def test_all_errors_are_told_together(windlass: Windlass, project: Path) -> None:
    (project / "new.py").write_text("")
    overrides = ["data.a=file:none-a", "data.b=file:none-b", "tasks.main.gpus=64", "env.uv=nowhere"]
    done = windlass("plan", "e.yaml", *overrides)
    assert (done.code, done.out) == (3, "")
    codes = [line.rpartition("[")[2].rstrip("]") for line in done.err.splitlines() if line.startswith("error:")]
    assert codes == ["dirty-tree", "file-not-found", "file-not-found", "file-not-found", "does-not-fit"]


def test_a_single_error_is_itself(windlass: Windlass, project: Path) -> None:
    done = windlass("plan", "e.yaml", "data.a=file:none")
    assert done.code == 4
    assert done.err.count("error:") == 1


def test_variables_that_you_set_are_shown_first_and_all(windlass: Windlass, project: Path) -> None:
    lines = windlass("plan", "e.yaml").out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  variables"))
    assert [line.split()[-1] for line in lines[at : at + 3]] == ["BAR=three", "BEAKER_MINE=two", "FOO=one"]


def test_a_question_over_the_network_is_announced(
    windlass: Windlass, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object, **more: object) -> str:
        raise UnreachableError("the registry example.org does not say what it is", code="remote-unreachable")

    monkeypatch.setattr(pinning, "fetch_digest", unreachable)
    monkeypatch.setattr(image, "_engine", lambda site: None)
    asked = "querying the registry example.org for the digest of `example.org/base:1`\n"
    named = windlass("plan", "e.yaml", "--on", "docker", "env.image=example.org/base:1")
    assert (named.code, named.err) == (0, asked)
    assert (
        "cannot get the digest of the image, so the plan of a launch will differ: the registry example.org" in named.out
    )
    built = windlass("plan", "e.yaml", "--on", "docker", "env.image=Dockerfile")
    assert built.code == 6
    assert built.err.startswith(asked)
    by_digest = f"env.image=example.org/base@sha256:{'1' * 64}"
    assert windlass("plan", "e.yaml", "--on", "docker", by_digest).err == ""


@pytest.mark.parametrize(
    "words",
    [
        ("mason", "--cluster", "ai2/triton", "--gpus", "0", "--pure_docker_mode", "--user", "me", "--image"),
        ("gantry", "run", "--docker-image"),
    ],
    ids=lambda words: words[0],
)
def test_a_plan_of_another_launcher_s_line_announces_its_question_too(
    windlass: Windlass, project: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    line = """\
git remote add origin https://github.com/me/play && git update-ref refs/remotes/origin/main HEAD
git config branch.main.remote origin && git config branch.main.merge refs/heads/main"""
    subprocess.run(["/bin/sh", "-ec", line], check=True)
    monkeypatch.setattr(pinning, "fetch_digest", lambda reference: f"sha256:{'1' * 64}")
    monkeypatch.setattr(image, "_engine", lambda site: None)
    done = windlass(*words, "example.org/base:1", "--on", "docker", "--emit", "plan", "--", "python", "train.py")
    assert done.code == 0, done.err
    assert "querying the registry example.org for the digest of `example.org/base:1`\n" in done.err


class ImageEngine:
    """An engine that has some images."""

    kind = "docker"

    def __init__(self, *names: str) -> None:
        self.names = names

    def look(self, *names: str) -> dict[str, object]:
        return {name: object() for name in names if name in self.names}

    def find(self, name: str) -> None:
        return None


def test_whether_the_image_is_there(windlass: Windlass, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = f"sha256:{'1' * 64}"
    words = ("plan", "e.yaml", "--on", "docker", f"env.image=example.org/base@{digest}")
    monkeypatch.setattr(image, "_engine", lambda site: ImageEngine(digest))
    assert f"image        example.org/base@{digest}\n             in docker on this machine\n" in windlass(*words).out
    monkeypatch.setattr(image, "_engine", lambda site: ImageEngine())
    assert "             not in docker yet: it will be pulled at launch\n" in windlass(*words).out
    monkeypatch.setattr(pinning, "fetch_digest", lambda reference: digest)
    built = windlass("plan", "e.yaml", "--on", "docker", "env.image=Dockerfile")
    assert "             not in docker yet: it will be built at launch\n" in built.out
