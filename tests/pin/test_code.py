from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.pin.conftest import Shell
from tests.pin.trees import contents, fingerprint
from windlass.core.errors import PreconditionError
from windlass.pin.code.checkouts import checkout, resolve_code_folder
from windlass.pin.code.git import Git, quote, unquote
from windlass.pin.code.pinned import NO_CODE
from windlass.pin.code.pinning import pin_code, strip_credentials


def test_a_clean_tree_is_its_commit(repo: Path, sh: Shell) -> None:
    sh("git remote add origin https://me:token@example.org/lab/x.git?token=1", repo)
    pin = pin_code(repo)
    assert (pin.kind, pin.commit, pin.branch) == ("commit", sh("git rev-parse HEAD", repo).strip(), "main")
    assert pin.tree == sh("git rev-parse HEAD^{tree}", repo).strip()
    assert pin.remote == "https://example.org/lab/x.git"
    assert not pin.is_dirty
    assert pin.dirty_files == ()


def test_a_folder_inside_pins_the_whole_repository(repo: Path, tmp_path: Path) -> None:
    pin = pin_code(repo / "pkg")
    assert pin.subdir == "pkg"
    assert checkout(pin, repo / "pkg", tmp_path / "code") == tmp_path / "code" / "pkg"
    assert (tmp_path / "code" / "train.py").exists()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("echo x >> train.py", ("train.py",)),
        ("echo x >> train.py && git add .", ("train.py",)),
        ("echo x > new.py", ("new.py",)),
        ("rm train.py", ("train.py",)),
        ("git mv train.py b.py", ("b.py", "train.py")),
        ("chmod -x run.sh", ("run.sh",)),
        ("git update-index --assume-unchanged train.py && echo x >> train.py", ("train.py",)),
        ("git update-index --skip-worktree train.py && echo x >> train.py", ("train.py",)),
        ("git add -N pkg && echo > pkg/n.py && git add -N pkg/n.py", ("pkg/n.py",)),
        ("mkdir d && echo > d/a && echo > d/b", ("d/a", "d/b")),
    ],
)
def test_every_kind_of_edit_is_dirty(repo: Path, sh: Shell, line: str, names: tuple[str, ...]) -> None:
    sh(line, repo)
    with pytest.raises(PreconditionError) as caught:
        pin_code(repo)
    assert caught.value.code == "dirty-tree"
    assert caught.value.exit_code == 8
    assert caught.value.message.replace(" (untracked)", "").endswith(": " + ", ".join(names))
    assert pin_code(repo, allow_dirty=True).dirty_files == names
    assert pin_code(repo, snapshot=True).dirty_files == names


def test_untracked_files_are_told_from_edits(repo: Path, sh: Shell) -> None:
    sh("echo x >> train.py", repo)
    with pytest.raises(PreconditionError) as edited:
        pin_code(repo)
    assert ".gitignore" not in edited.value.hint
    sh("echo > notes.txt", repo)
    with pytest.raises(PreconditionError) as caught:
        pin_code(repo)
    assert caught.value.message.endswith(": notes.txt (untracked), train.py")
    assert caught.value.hint.startswith(
        "commit them (or list files that are not code in .gitignore), or add --snapshot"
    )


def test_ignored_files_are_not_dirty(repo: Path) -> None:
    (repo / "ignored").mkdir()
    (repo / "ignored/x").touch()
    (repo / "a.log").touch()
    assert pin_code(repo).kind == "commit"


def test_many_dirty_files_are_counted(repo: Path) -> None:
    for number in range(13):
        (repo / f"f{number:02}").touch()
    with pytest.raises(PreconditionError, match=r"(?m)13 files differ .*: f00 .*, f09 .untracked. and 3 more$"):
        pin_code(repo)


def test_in_place_runs_where_the_edits_are(repo: Path, tmp_path: Path) -> None:
    (repo / "train.py").write_text("edited")
    pin = pin_code(repo / "pkg", allow_dirty=True)
    assert (pin.kind, pin.is_dirty, pin.tree) == ("in-place", True, "")
    assert checkout(pin, repo / "pkg", tmp_path / "code") == repo / "pkg"
    assert not (tmp_path / "code").exists()
    assert pin_code(repo, revision="HEAD").kind == "commit"


def test_a_clean_tree_with_either_option_is_a_commit(repo: Path) -> None:
    assert pin_code(repo, snapshot=True) == pin_code(repo, allow_dirty=True) == pin_code(repo)


def test_no_code_has_no_folder_of_its_own(tmp_path: Path) -> None:
    assert checkout(NO_CODE, tmp_path, tmp_path / "code") == tmp_path
    assert resolve_code_folder(NO_CODE, tmp_path, tmp_path / "code") == tmp_path


def test_revisions_by_any_name(repo: Path, sh: Shell) -> None:
    first = sh("git rev-parse HEAD", repo).strip()
    sh("git tag -a v1 -m v1 && echo two > train.py && git commit -qam two", repo)
    (repo / "train.py").write_text("dirty, which an explicit revision does not mind")
    for name in (first, first[:8], "v1", "HEAD~1", "main~1"):
        assert pin_code(repo, revision=name).commit == first


def test_detached_head_linked_worktree_and_shallow_clone(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("echo two > train.py && git commit -qam two && git worktree add -q --detach ../linked HEAD~1", repo)
    sh("git clone -q --depth 1 file://$PWD ../shallow", repo)
    linked = pin_code(tmp_path / "linked")
    assert (linked.branch, linked.kind) == ("", "commit")
    assert contents(checkout(linked, tmp_path / "linked", tmp_path / "c1")) == contents(tmp_path / "linked")
    shallow = pin_code(tmp_path / "shallow")
    assert contents(checkout(shallow, tmp_path / "shallow", tmp_path / "c2")) == contents(repo)
    (tmp_path / "linked/new.py").touch()
    snapshot = pin_code(tmp_path / "linked", snapshot=True)
    # The ref is shared by all working trees, so the snapshot outlives the linked one.
    shutil.rmtree(tmp_path / "linked")
    assert "new.py" in contents(checkout(snapshot, repo, tmp_path / "c3"))


def test_a_bare_repository_serves_explicit_revisions(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("git clone -q --bare . ../bare.git", repo)
    pin = pin_code(tmp_path / "bare.git", revision="main")
    assert contents(checkout(pin, tmp_path / "bare.git", tmp_path / "code")) == contents(repo)


def test_variables_of_a_calling_git_do_not_redirect_us(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert pin_code(repo).kind == "commit"


def test_pinning_touches_nothing(repo: Path, sh: Shell) -> None:
    os.utime(repo / "train.py")  # a stale stat cache, which a plain `git status` would write back
    before = fingerprint(repo)
    pin_code(repo)
    assert fingerprint(repo) == before


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://user:pw@example.org/a.git", "https://example.org/a.git"),
        ("https://token@example.org/a.git", "https://example.org/a.git"),
        ("https://example.org:8443/a.git?private_token=x#y", "https://example.org:8443/a.git"),
        ("ssh://git:pw@example.org:22/a.git", "ssh://git@example.org:22/a.git"),
        ("git@example.org:lab/a.git", "git@example.org:lab/a.git"),
        ("user:pw@example.org:lab/a.git", "user@example.org:lab/a.git"),
        ("/srv/a.git", "/srv/a.git"),
        ("../a.git", "../a.git"),
        ("", ""),
    ],
)
def test_remotes_lose_their_credentials(url: str, kept: str) -> None:
    assert strip_credentials(url) == kept


@pytest.mark.parametrize(
    "name", ["a", 'q"q', "new\nline", "tab\t", "back\\slash", "\u00fc", os.fsdecode(b"\xff\xfe"), " blank "]
)
def test_names_survive_quoting(name: str, repo: Path) -> None:
    assert unquote(os.fsdecode(quote(name))) == name
    (repo / name).touch()
    assert name in [unquote(line) for line in Git(folder=repo).lines("ls-files", "--others", "--cached")]
