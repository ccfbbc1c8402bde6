from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.runs.home import Home, cache_directory


def test_the_environment_names_the_home(tmp_path: Path) -> None:
    assert Home.default({"WINDLASS_HOME": str(tmp_path / "w")}).path == tmp_path / "w"
    assert Home.default({"XDG_DATA_HOME": str(tmp_path)}).path == tmp_path / "windlass"
    assert Home.default({}).path == Path.home() / ".local" / "share" / "windlass"


def test_a_relative_xdg_directory_is_ignored() -> None:
    assert Home.default({"XDG_DATA_HOME": "data"}).path == Path.home() / ".local" / "share" / "windlass"
    assert cache_directory({"XDG_CACHE_HOME": "x"}) == Path.home() / ".cache" / "windlass"


def test_parts_are_made_for_the_owner_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "home")
    assert not home.path.exists()
    for part in (home.runs, home.cache, home.vault, home.leases):
        assert stat.S_IMODE(part.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700


def test_a_home_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreconditionError) as caught:
        _ = Home(tmp_path / "file" / "home").runs
    assert caught.value.message == f"cannot create {tmp_path}/file/home/runs: Not a directory"
    assert "export WINDLASS_HOME=" in caught.value.hint
    assert caught.value.code == "not-writable"


def test_a_home_inside_a_project_leaves_its_tree_clean(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    home = Home(tmp_path / "state")
    for part in (home.runs, home.cache, home.vault, home.leases):
        (part / "file").write_text("x")
    told = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == ""


def test_a_gitignore_of_the_users_own_in_the_home_is_kept(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("runs/\n")
    assert Home(tmp_path).runs.is_dir()
    assert (tmp_path / ".gitignore").read_text() == "runs/\n"
