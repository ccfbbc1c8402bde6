from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pin.conftest import Shell
from tests.pin.trees import contents
from windlass.core.errors import PreconditionError
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinning import pin_code


def test_a_checkout_is_whole_alone_and_dated(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("GIT_COMMITTER_DATE='2020-02-02T00:00:00Z' git commit -q --amend --no-edit", repo)
    code = checkout(pin_code(repo), repo, tmp_path / "runs/x/code")
    assert contents(code) == contents(repo)
    assert not (code / ".git").exists()
    assert (code / "train.py").stat().st_mtime == (code / "link").lstat().st_mtime == 1580601600
    assert (code / "train.py").stat().st_nlink == 1
    assert os.listdir(tmp_path / "runs/x") == ["code"]


def test_a_checkout_again_is_the_same_checkout(repo: Path, tmp_path: Path) -> None:
    pin = pin_code(repo)
    code = checkout(pin, repo, tmp_path / "code")
    (code / "__pycache__").mkdir()
    inode = (code / "train.py").stat().st_ino
    assert checkout(pin, repo, tmp_path / "code") == code
    assert (code / "train.py").stat().st_ino == inode


def test_an_empty_destination_is_taken(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    assert contents(checkout(pin_code(repo), repo, tmp_path / "code")) == contents(repo)


def test_a_failed_checkout_leaves_nothing(repo: Path, tmp_path: Path, sh: Shell) -> None:
    pin = pin_code(repo)
    blob = sh("git rev-parse HEAD:train.py", repo).strip()
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(PreconditionError) as caught:
        checkout(pin, repo, tmp_path / "runs/code")
    assert caught.value.code == "git-failed"
    assert blob in caught.value.message
    assert os.listdir(tmp_path / "runs") == []


def test_sparse_checkouts_are_whole_commits(repo: Path, tmp_path: Path, sh: Shell) -> None:
    whole = contents(repo)
    sh("git sparse-checkout set --no-cone pkg", repo)
    assert not (repo / "train.py").exists()
    assert contents(checkout(pin_code(repo), repo, tmp_path / "code")) == whole
    (repo / "pkg/new.py").write_text("n")
    snapshot = checkout(pin_code(repo, snapshot=True), repo, tmp_path / "code2")
    assert sorted(contents(snapshot)) == sorted([*whole, "pkg/new.py"])


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n".format("1" * 64)


def make_lfs(repo: Path, sh: Shell) -> None:
    (repo / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (repo / "model.bin").write_text(POINTER)
    sh("git add . && git commit -qm lfs", repo)


def test_lfs_files_are_materialised(repo: Path, tmp_path: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    make_lfs(repo, sh)
    (tmp_path / "bin").mkdir()
    # Like git-lfs in the older one-process-per-file protocol, which git falls back to when no `process` is there.
    fake = tmp_path / "bin/git-lfs"
    fake.write_text("#!/bin/sh\ncase $1 in smudge) cat >/dev/null; printf 'heavy';; clean) cat;; *) exit 1;; esac\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("windlass.pin.code.checkouts._LFS_PROCESS", ())
    assert (checkout(pin_code(repo), repo, tmp_path / "code") / "model.bin").read_text() == "heavy"


def test_lfs_pointers_without_git_lfs_are_refused(repo: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    make_lfs(repo, sh)
    monkeypatch.setattr("windlass.pin.code.worktree.shutil.which", lambda name: None)
    with pytest.raises(PreconditionError) as caught:
        pin_code(repo)
    assert caught.value.message == "git-lfs is not installed, and 1 file is only an LFS pointer: model.bin"
    (repo / "model.bin").write_text("the real content, which a snapshot stores itself")
    assert pin_code(repo, snapshot=True).dirty_files == ("model.bin",)
