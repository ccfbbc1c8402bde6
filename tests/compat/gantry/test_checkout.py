"""The commit that a job fetches: found, and refused where a job could not have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.gantry.conftest import Pushed
from windlass.compat.gantry import Recipe
from windlass.compat.gantry.checkout import checkout_of, is_public, read_remote, repository_of
from windlass.compat.gantry.request import prepare
from windlass.core.errors import UnreachableError, WindlassError


def here(**settings: object) -> Recipe:
    return Recipe(["x"], **settings)  # type: ignore[arg-type]


def code_of(folder: Path, **settings: object) -> str:
    with pytest.raises(WindlassError) as refused:
        prepare(here(**settings), folder=folder, environ={})
    assert refused.value.hint
    return refused.value.code


@pytest.mark.parametrize(
    ("url", "repo", "fetched"),
    [
        ("https://github.com/a/b.git", "a/b", "https://github.com/a/b"),
        ("git@github.com:a/b.git", "a/b", "https://github.com/a/b"),
        ("ssh://git@github.com/a/b", "a/b", "https://github.com/a/b"),
        ("https://user:word@github.com/a/b/", "a/b", "https://github.com/a/b"),
        ("a/b.c", "a/b.c", "https://github.com/a/b.c"),
        ("https://git.example.org/group/a/b.git", "a/b", "https://git.example.org/group/a/b.git"),
        ("git@git.example.org:a/b.git", "a/b", "git@git.example.org:a/b.git"),
        ("/srv/git/b.git", "git/b", "/srv/git/b.git"),
    ],
)
def test_addresses(url: str, repo: str, fetched: str) -> None:
    assert repository_of(url) == (repo, fetched)


def test_what_a_checkout_knows(pushed: Pushed) -> None:
    pushed.commit(pyproject__toml="")
    pushed.push()
    found = checkout_of(pushed.folder, ref=None, branch=None, is_online=False)
    assert (found.repo, found.url, found.branch) == ("lab/project", "https://github.com/lab/project", "main")
    assert found.ref == pushed.git("rev-parse", "HEAD")
    assert found.has("pyproject.toml")
    assert not found.has("setup.py")
    assert found.is_on_github
    assert not found.is_dirty


def test_an_abbreviated_commit_is_the_whole_one(pushed: Pushed) -> None:
    whole = pushed.git("rev-parse", "HEAD")
    assert checkout_of(pushed.folder, ref=whole[:8], branch=None, is_online=False).ref == whole


def test_changes_are_refused_unless_allowed(pushed: Pushed) -> None:
    (pushed.folder / "README.md").write_text("changed")
    assert code_of(pushed.folder) == "dirty-tree"
    request = prepare(here(allow_dirty=True), folder=pushed.folder)
    assert "uncommitted changes are not included" in request.notes
    assert prepare(here(ref="HEAD"), folder=pushed.folder).checkout.is_dirty


def test_untracked_files_are_no_changes(pushed: Pushed) -> None:
    (pushed.folder / "untracked").touch()
    assert prepare(here(), folder=pushed.folder).checkout.is_dirty is False


def test_a_commit_must_be_pushed(pushed: Pushed) -> None:
    pushed.commit()
    assert code_of(pushed.folder) == "commit-not-pushed"
    with pytest.raises(WindlassError, match="is not on the remote `origin`"):
        checkout_of(pushed.folder, ref=None, branch=None, is_online=True)
    pushed.push()
    assert prepare(here(), folder=pushed.folder).checkout.ref == pushed.git("rev-parse", "HEAD")


def test_a_commit_that_somebody_else_pushed_is_asked_for(pushed: Pushed) -> None:
    commit = pushed.commit()
    pushed.git("push", "-q", str(pushed.bare), "HEAD:refs/heads/other")
    assert code_of(pushed.folder) == "commit-not-pushed"
    assert checkout_of(pushed.folder, ref=None, branch=None, is_online=True).ref == commit


@pytest.mark.parametrize(("ref", "code"), [("none", "revision-not-found"), ("-x", "revision-not-found")])
def test_no_such_commit(pushed: Pushed, ref: str, code: str) -> None:
    assert code_of(pushed.folder, ref=ref) == code


def test_where_there_is_nothing_to_fetch(pushed: Pushed, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert code_of(empty) == "no-commit"
    below = pushed.folder / "below"
    below.mkdir()
    assert code_of(below) == "precondition"
    pushed.git("remote", "remove", "origin")
    assert code_of(pushed.folder) == "commit-not-pushed"


def test_a_detached_head_has_no_branch(pushed: Pushed) -> None:
    pushed.git("switch", "-q", "--detach")
    spec = prepare(here(), folder=pushed.folder).spec
    assert "GIT_BRANCH" not in [each["name"] for each in spec["tasks"][0]["envVars"]]


def test_another_server_is_named_to_the_job(pushed: Pushed) -> None:
    pushed.git("remote", "set-url", "origin", "https://git.example.org/lab/project.git")
    variables = prepare(here(), folder=pushed.folder).spec["tasks"][0]["envVars"]
    assert {"name": "WINDLASS_GIT_URL", "value": "https://git.example.org/lab/project.git"} in variables
    assert {"name": "GITHUB_REPO", "value": "lab/project"} in variables


def test_a_repository_that_is_not_here(pushed: Pushed, tmp_path: Path) -> None:
    commit = pushed.commit(pyproject__toml="")
    pushed.push()
    address = f"file://{pushed.bare}"
    found = read_remote(address, ref=None, branch="main", is_online=True)
    assert (found.ref, found.branch, found.has("pyproject.toml")) == (commit, "main", True)
    offline = read_remote(address, ref=commit, branch=None, is_online=False)
    assert (offline.ref, offline.files) == (commit, None)
    with pytest.raises(WindlassError, match="no branch `none`"):
        read_remote(address, ref=None, branch="none", is_online=True)
    with pytest.raises(WindlassError, match="does not serve commit"):
        read_remote(address, ref="0" * 40, branch=None, is_online=True)
    request = prepare(here(remote=address, ref=commit), folder=tmp_path)
    assert "a Python project is assumed" in request.notes[-1]


def test_whether_it_is_public(pushed: Pushed) -> None:
    assert is_public(f"file://{pushed.bare}")
    with pytest.raises(UnreachableError):
        is_public("http://127.0.0.1:9/lab/project")
