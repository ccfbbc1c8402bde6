from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.cli.starting import TEMPLATES
from windlass.spec.load import load_experiment


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, without the user's git settings."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    return work


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_is_an_experiment_with_a_first_commit(template: str, windlass: Windlass, folder: Path) -> None:
    result = windlass("init", "my-run_1", "--template", template)
    assert (result.code, result.out) == (0, "")
    made = folder / "my-run_1"
    assert git(made, "status", "--porcelain") == ""
    assert git(made, "log", "--format=%s|%an") == "Start my-run_1|windlass"
    assert load_experiment(made / "experiment.yaml").value.name == "my-run_1"
    assert "{{" not in "".join(path.read_text() for path in made.iterdir() if path.is_file())
    for script in made.glob("*.py"):
        compile(script.read_text(), str(script), "exec")


def test_the_training_runs_alone_without_windlass(windlass: Windlass, folder: Path) -> None:
    windlass("init", "hello")
    argv = [sys.executable, "-I", "-S", "train.py", "--steps", "40"]
    done = subprocess.run(argv, cwd=folder / "hello", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step   40  loss" in done.stdout
    assert git(folder / "hello", "status", "--porcelain") == ""


def test_an_image_on_the_command_line_replaces_the_lock_of_the_file(windlass: Windlass, folder: Path) -> None:
    windlass("init", "hello")
    made = load_experiment(folder / "hello" / "experiment.yaml", ["env.image=Dockerfile"]).value
    assert (made.env.image.dockerfile, made.env.uv) == ("Dockerfile", "")


def test_it_says_what_it_made_and_what_comes_next(windlass: Windlass, folder: Path) -> None:
    lines = windlass("init", "hello").err.splitlines()
    commit = git(folder / "hello", "rev-parse", "--short", "HEAD")
    assert sorted(lines[:5]) == [
        "  hello/.gitignore",
        "  hello/experiment.yaml",
        "  hello/pyproject.toml",
        "  hello/train.py",
        "  hello/uv.lock",
    ]
    assert lines[5:] == [
        f"created a git repository, first commit {commit}",
        "next: cd hello && windlass launch experiment.yaml",
    ]


def test_nothing_is_overwritten(windlass: Windlass, folder: Path) -> None:
    (folder / "hello").mkdir()
    (folder / "hello" / "train.py").write_text("mine")
    result = windlass("init", "hello")
    assert result.code == 8
    assert "already has train.py; nothing was written" in result.err
    assert [path.name for path in (folder / "hello").iterdir()] == ["train.py"]
    (folder / "file").write_text("")
    assert "is a file" in windlass("init", "file").err


def test_a_folder_that_cannot_name_an_experiment(windlass: Windlass, folder: Path) -> None:
    result = windlass("init", "My Run")
    assert result.code == 2
    assert "invalid experiment name `My Run`" in result.err
    assert "hint: windlass init my-run" in result.err
    assert not (folder / "My Run").exists()


def test_in_somebodys_repository_it_only_says_what_to_commit(windlass: Windlass, folder: Path) -> None:
    git(folder, "init", "--quiet")
    result = windlass("init", "hello", "--template", "empty")
    assert result.err.splitlines() == [
        "  hello/experiment.yaml",
        f"{folder / 'hello'} is in the repository {folder}; commit it with:",
        "  git add hello && git commit -m 'Start hello' -- hello",
        "next: cd hello && windlass launch experiment.yaml",
    ]
    assert git(folder, "status", "--porcelain") == "?? hello/"


def test_without_git_there_is_still_an_experiment(
    windlass: Windlass, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = windlass("init", "hello", "--template", "empty")
    assert result.code == 0
    assert "--snapshot" in result.err or "git" in result.err
    assert (folder / "hello" / "experiment.yaml").is_file()
