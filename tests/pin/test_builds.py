"""The key of a build: what is in it, what is not, and which code counts."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import PreconditionError
from windlass.pin.builds import build_key, code_of_build
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.pinning import pin_code

KEY: dict[str, Any] = {
    "variables": {"A": "1"},
    "inputs": {"raw": "d" * 64},
    "code": "7" * 40,
    "subdir": "",
    "environment": {"environment": {"kind": "none"}},
}


def key(command: str = "tokenise ${out}", **changes: Any) -> str:
    return build_key(command, **{**KEY, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"variables": {"A": "2"}},
        {"inputs": {"raw": "e" * 64}},
        {"inputs": {"other": "d" * 64}},
        {"code": "8" * 40},
        {"subdir": "a"},
        {"environment": {"environment": {"kind": "uv", "lock": "1"}}},
    ],
)
def test_everything_that_may_change_the_data_is_in_the_key(changes: dict[str, Any]) -> None:
    assert key(**changes) != key()
    assert key("tokenise -v ${out}") != key()


def test_a_line_and_a_list_are_two_commands() -> None:
    assert build_key(["tokenise ${out}"], **KEY) != key()
    assert len(key()) == 40


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "prepare").mkdir(parents=True)
    for name in ("train.py", "prepare/tokenise.py", "prepare/words.txt"):
        (folder / name).write_text(f"{name}\n")
    git(folder, "init", "-q")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "next")


def digest(folder: Path, *patterns: str, pin: CodePin | None = None) -> str:
    return code_of_build("tokens", pin or pin_code(folder), folder, patterns)


@pytest.mark.parametrize("pattern", ["prepare", "prepare/", "./prepare", "prepare/*.py", "prep*"])
def test_only_the_code_that_is_named_counts(repository: Path, pattern: str) -> None:
    before, whole = digest(repository, pattern), digest(repository)
    (repository / "train.py").write_text("changed")
    commit(repository)
    assert (digest(repository, pattern) == before, digest(repository) == whole) == (True, False)
    (repository / "prepare" / "tokenise.py").write_text("changed")
    commit(repository)
    assert digest(repository, pattern) != before


def test_the_same_files_are_the_same_code_however_they_are_pinned(repository: Path) -> None:
    committed = digest(repository, "prepare")
    (repository / "train.py").write_text("edited")
    snapshot, in_place = pin_code(repository, snapshot=True), pin_code(repository, allow_dirty=True)
    assert (snapshot.kind, in_place.kind) == ("snapshot", "in-place")
    assert digest(repository, "prepare", pin=snapshot) == committed
    assert digest(repository, "prepare", pin=in_place) == committed
    assert digest(repository, pin=snapshot) == digest(repository, pin=in_place) == snapshot.tree


def test_a_mode_and_a_link_count(repository: Path) -> None:
    before = digest(repository, "prepare")
    (repository / "prepare" / "tokenise.py").chmod(0o755)
    executable = digest(repository, "prepare", pin=pin_code(repository, snapshot=True))
    (repository / "prepare" / "link").symlink_to("words.txt")
    assert len({before, executable, digest(repository, "prepare", pin=pin_code(repository, snapshot=True))}) == 3


def test_a_folder_without_git_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "__pycache__" / "a.pyc").write_text("1")
    pin = pin_code(tmp_path, allow_dirty=True)
    before = digest(tmp_path, "*", pin=pin)
    (tmp_path / "__pycache__" / "a.pyc").write_text("2")
    assert digest(tmp_path, "*", pin=pin) == before
    (tmp_path / "a.py").write_text("b")
    assert digest(tmp_path, "*", pin=pin) != before


def test_a_code_folder_below_the_root(repository: Path) -> None:
    pin = pin_code(repository / "prepare")
    assert pin.subdir == "prepare"
    found = code_of_build("tokens", pin, repository / "prepare", ("tokenise.py",))
    assert found == code_of_build("tokens", replace(pin, kind="snapshot"), repository / "prepare", ("tokenise.py",))


def test_a_pattern_that_matches_nothing_is_refused(repository: Path) -> None:
    with pytest.raises(
        PreconditionError, match=r"data.tokens.code: `prepared/\*.py` matches no file of the code"
    ) as caught:
        digest(repository, "prepare", "prepared/*.py")
    assert caught.value.code == "code-not-in-commit"
