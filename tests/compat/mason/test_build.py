from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from windlass.compat.mason.build import (
    BranchImage,
    BuildOptions,
    UploadedImage,
    build_branch_image,
    image_name,
    read_build,
    run_script,
)
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.runs.home import Home


@dataclass
class Store:
    """Images of Beaker, in memory; `done` is what was asked of it."""

    images: dict[str, UploadedImage] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def user(self) -> str:
        return "jo"

    def find(self, name: str) -> UploadedImage | None:
        return self.images.get(name)

    def unname(self, image: UploadedImage) -> None:
        self.done.append(f"unname {image.id}")

    def upload(self, name: str, tag: str, *, workspace: str, description: str) -> None:
        self.done.append(f"upload {name} {tag} {workspace}: {description}")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "go.sh").write_text('echo "$OPEN_INSTRUCT_CUDA_VERSION $UV_PROJECT_ENVIRONMENT $*" >../said; exit 4\n')
    (folder / "Dockerfile").write_text("FROM scratch\n")
    git(folder, "init", "--quiet", "--initial-branch=Feature/A")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_the_words() -> None:
    options = read_build(["--cuda-version=13", "--workspace", "lab/main", "go.sh", "a", "--cuda-version", "1"])
    assert options == BuildOptions(
        script=Path("go.sh"), arguments=("a", "--cuda-version", "1"), cuda_version="13", workspace="lab/main"
    )


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ([], "missing-argument", "SCRIPT"),
        (["--cuda-version", "12"], "missing-argument", "SCRIPT"),
        (["--cuda-versoin", "12", "go.sh"], "unknown-option", "--cuda-version"),
        (["--cuda-version", "11", "go.sh"], "invalid-value", "12"),
    ],
)
def test_words_that_are_refused(words: list[str], code: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_build(words)
    assert (caught.value.code, hint in caught.value.hint) == (code, True)


@pytest.mark.parametrize(
    ("branch", "name"),
    [
        ("main", "open-instruct-integration-test-main-cuda12"),
        ("Feature/A_b.c", "open-instruct-integration-test-feature-a_b.c-cuda12"),
        ("/x", "open-instruct-integration-test-x-cuda12"),
        ("", "open-instruct-integration-test-detached-cuda12"),
    ],
)
def test_names(branch: str, name: str) -> None:
    assert image_name(branch, "12") == name


def test_a_long_name_keeps_its_end() -> None:
    assert len(image_name("x" * 300, "13")) == 127
    assert image_name("x" * 300, "13").endswith("x-cuda13")


def test_nothing_is_done_for_a_commit_that_beaker_has(repository: Path, home: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    name = "jo/open-instruct-integration-test-feature-a-cuda12"
    store = Store({name: UploadedImage(id="01A", description=f"Git commit: {commit[:7]}; CUDA: 12")})
    image = build_branch_image(read_build(["go.sh"]), repository, Home(home), store, log=lambda _: None)
    assert (image, store.done) == (BranchImage(name=name, commit=commit), [])


def test_a_tree_that_is_not_clean_is_refused(repository: Path, home: Path) -> None:
    (repository / "untracked.py").write_text("")
    with pytest.raises(PreconditionError) as caught:
        build_branch_image(read_build(["go.sh"]), repository, Home(home), Store(), log=lambda _: None)
    assert (caught.value.code, "--snapshot" in caught.value.hint) == ("dirty-tree", False)  # build has no such option


def test_a_script_that_is_not_there_is_refused_first(repository: Path, home: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such script: `gone\.sh`"):
        build_branch_image(read_build(["gone.sh"]), repository, Home(home), Store(), log=lambda _: None)


def test_the_script_gets_the_image_and_its_words(repository: Path) -> None:
    options = read_build(["--cuda-version", "13", "go.sh", "a b", "-v"])
    code = run_script(options, BranchImage(name="jo/x", commit="c"), repository, {"PATH": "/usr/bin:/bin"})
    assert code == 4
    assert (repository.parent / "said").read_text() == "13 .venv-launcher jo/x a b -v\n"
