from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pin.conftest import Shell
from tests.pin.trees import contents, fingerprint
from windlass.core.errors import AccessError, PreconditionError
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinning import pin_code
from windlass.pin.code.snapshot import is_credential_name


def make_dirty(repo: Path, sh: Shell) -> None:
    """Every kind of edit at once, some of them hidden from a plain `git add`."""
    (repo / "train.py").write_bytes(b"windows\r\nlines\r\n")
    (repo / ".gitattributes").write_text("* text=auto eol=lf\n*.dat filter=upper ident\n")
    (repo / "x.dat").write_text("$Id$ plain\n")
    (repo / "staged.py").write_text("s")
    sh("git add staged.py && git rm -q --cached run.sh", repo)
    (repo / "run.sh").chmod(0o644)
    (repo / "tool").write_text("#!/bin/sh\n")
    (repo / "tool").chmod(0o755)
    (repo / "link").unlink()
    (repo / "link").mkdir()
    (repo / "link/inner").write_text("a folder where a link was")
    (repo / "broken").symlink_to("nowhere/at/all")
    (repo / "to-folder").symlink_to("pkg")
    (repo / 'odd "name"\n\u00fc').write_text("odd")
    (repo / os.fsdecode(b"latin-\xfc")).write_text("bytes")
    (repo / "pkg/__init__.py").unlink()
    (repo / "ignored").mkdir()
    (repo / "ignored/x").write_text("not stored")


def test_a_snapshot_is_the_exact_tree(repo: Path, tmp_path: Path, sh: Shell) -> None:
    make_dirty(repo, sh)
    pin = pin_code(repo, snapshot=True)
    code = checkout(pin, repo, tmp_path / "code")
    expected = contents(repo)
    del expected["ignored/x"]
    assert contents(code) == expected
    assert pin.ref == f"refs/windlass/snapshots/{pin.tree}"
    assert pin.base == sh("git rev-parse HEAD", repo).strip()


def test_unchanged_files_that_git_converts_are_exact_too(repo: Path, tmp_path: Path, sh: Shell) -> None:
    (repo / ".gitattributes").write_text("*.bat text eol=crlf\n*.id ident\n*.u16 working-tree-encoding=UTF-16LE\n")
    (repo / "a.bat").write_bytes(b"one\r\ntwo\r\n")
    (repo / "b.id").write_text("$Id$\n")
    (repo / "c.u16").write_bytes("wide".encode("utf-16-le"))
    sh("git add . && git commit -qm attributes && rm b.id && git checkout -q b.id", repo)
    assert len((repo / "b.id").read_text()) > 40
    assert contents(checkout(pin_code(repo), repo, tmp_path / "commit")) == contents(repo)
    (repo / "new").touch()
    assert contents(checkout(pin_code(repo, snapshot=True), repo, tmp_path / "snapshot")) == contents(repo)


def test_a_snapshot_leaves_everything_else_as_it_was(repo: Path, sh: Shell) -> None:
    make_dirty(repo, sh)
    sh("mkdir -p .git/hooks && for h in reference-transaction post-index-change pre-commit; do"
       " printf '#!/bin/sh\\ntouch hook-ran\\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done", repo)  # fmt: skip
    sh("git config core.logAllRefUpdates always && git config core.fsmonitor 'touch hook-ran #'", repo)
    look = "GIT_OPTIONAL_LOCKS=0 git -c core.fsmonitor=false status --porcelain"
    before, files, status = fingerprint(repo), contents(repo), sh(look, repo)
    pin_code(repo, snapshot=True)
    assert fingerprint(repo) == before
    assert contents(repo) == files
    assert "hook-ran" not in os.listdir(repo)
    assert sh(look, repo) == status


def test_the_same_tree_is_the_same_commit(
    repo: Path, tmp_path: Path, sh: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "new.py").write_text("n")
    first = pin_code(repo, snapshot=True)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone else")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert pin_code(repo, snapshot=True) == first
    sh("cp -r repo other && cd other && git commit -q --allow-empty -m more", tmp_path)
    assert pin_code(tmp_path / "other", snapshot=True).commit == first.commit


def test_a_planned_snapshot_leaves_nothing(repo: Path, sh: Shell) -> None:
    (repo / "new.py").write_text("n")
    before = sh("find . | sort", repo)
    planned = pin_code(repo, snapshot=True, write=False)
    assert sh("find . | sort", repo) == before
    assert pin_code(repo, snapshot=True) == planned


def test_later_edits_and_garbage_collection_do_not_reach_a_snapshot(repo: Path, tmp_path: Path, sh: Shell) -> None:
    (repo / "train.py").write_text("as pinned")
    pin = pin_code(repo, snapshot=True)
    code = checkout(pin, repo, tmp_path / "one")
    (repo / "train.py").write_text("edited later")
    sh("git reset -q --hard && git reflog expire --expire=now --all && git gc -q --prune=now", repo)
    assert (code / "train.py").read_text() == "as pinned"
    assert (checkout(pin, repo, tmp_path / "two") / "train.py").read_text() == "as pinned"


def test_a_repository_without_commits(tmp_path: Path, sh: Shell) -> None:
    sh("git init -q new && echo 1 > new/a", tmp_path)
    pin = pin_code(tmp_path / "new", snapshot=True)
    assert (pin.base, pin.dirty_files) == ("", ("a",))
    assert contents(checkout(pin, tmp_path / "new", tmp_path / "code")) == contents(tmp_path / "new")


def test_a_folder_outside_any_repository(tmp_path: Path, sh: Shell) -> None:
    loose, store = tmp_path / "loose", tmp_path / "home" / "store"
    (loose / "__pycache__").mkdir(parents=True)
    (loose / "__pycache__/a.pyc").touch()
    (loose / "a.py").write_text("1")
    (loose / "b").symlink_to("a.py")
    (loose / ".gitignore").write_text("*.log\n")
    (loose / "x.log").touch()
    planned = pin_code(loose, snapshot=True, write=False, store=store)
    assert not store.exists()
    pin = pin_code(loose, snapshot=True, store=store)
    assert pin == planned
    assert sh("find . -name .git", loose) == ""
    code = checkout(pin, loose, tmp_path / "code", store=store)
    assert sorted(contents(code)) == [".gitignore", "a.py", "b"]
    (loose / "a.py").write_text("2")
    assert pin_code(loose, snapshot=True, store=store).commit != pin.commit
    assert (checkout(pin, loose, tmp_path / "again", store=store) / "a.py").read_text() == "1"


def test_submodules_are_part_of_both_kinds(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("git init -q -b main lib && cd lib && echo deep > d && git add . && git commit -qm d", tmp_path)
    sh("git init -q -b main mid && cd mid && git -c protocol.file.allow=always submodule -q add ../lib inner"
       " && echo m > m && git add . && git commit -qm m", tmp_path)  # fmt: skip
    sh("git -c protocol.file.allow=always submodule -q add ../mid 'the lib' &&"
       " git -c protocol.file.allow=always submodule -q update --init --recursive && git commit -qm sub", repo)  # fmt: skip
    pin = pin_code(repo)
    assert contents(checkout(pin, repo, tmp_path / "one")) == contents(repo)
    assert list((tmp_path / "one").rglob(".git")) == []

    (repo / "the lib/inner/d").write_text("edited deep inside")
    (repo / "the lib/untracked").write_text("u")
    with pytest.raises(
        PreconditionError, match=r"(?m)2 files differ .*: the lib/inner/d, the lib/untracked \(untracked\)$"
    ):
        pin_code(repo)
    before = fingerprint(repo)
    planned = pin_code(repo, snapshot=True, write=False)
    snapshot = pin_code(repo, snapshot=True)
    assert fingerprint(repo) == before
    assert snapshot == planned
    assert contents(checkout(snapshot, repo, tmp_path / "two")) == contents(repo)
    # The snapshot is whole in itself: the submodules' own repositories are no longer needed.
    sh("rm -rf .git/modules 'the lib'", repo)
    assert (checkout(snapshot, repo, tmp_path / "three") / "the lib/inner/d").read_text() == "edited deep inside"


def test_a_nested_repository_is_grafted(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("git init -q nested && cd nested && echo 1 > a && git add . && git commit -qm n && echo 2 > b", repo)
    pin = pin_code(repo, snapshot=True)
    assert contents(checkout(pin, repo, tmp_path / "code")) == contents(repo)


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        (".env", True), ("deep/er/.env.local", True), ("server.PEM", True), ("id_rsa", True), ("credentials.json", True), (".netrc", True),
        ("k.p12", True), ("tls.key", True), (".aws/credentials", True), ("kubeconfig", True), (".pypirc", True),
        (".env.example", False), ("credentials.py", False), ("id_rsa.pub", False), ("keys.py", False), ("environment.yaml", False),
        ("monkey", False), ("turkey.txt", False),
    ],
)  # fmt: skip
def test_credential_names(name: str, is_secret: bool) -> None:
    assert is_credential_name(name) is is_secret


def test_committed_files_are_not_judged_again(repo: Path, sh: Shell) -> None:
    sh("echo test > fixture.pem && git add . && git commit -qm fixture && echo x >> train.py", repo)
    assert pin_code(repo, snapshot=True).dirty_files == ("train.py",)


def test_a_refused_file_is_not_stored(repo: Path, sh: Shell) -> None:
    (repo / ".env").write_text("PLANTED=very-secret-value")
    with pytest.raises(PreconditionError):
        pin_code(repo, snapshot=True)
    blob = sh("git hash-object .env", repo).strip()
    assert not (repo / ".git/objects" / blob[:2] / blob[2:]).exists()


def test_a_conflict_is_stored_as_it_stands(repo: Path, tmp_path: Path, sh: Shell) -> None:
    sh("git checkout -qb other && echo other > train.py && echo o > both && git add . && git commit -qm o", repo)
    sh("git checkout -q main && git rm -q train.py && echo m > both && git add . && git commit -qm m", repo)
    sh("git merge other || true", repo)
    assert sh("git ls-files --unmerged", repo) != ""
    before = fingerprint(repo)
    pin = pin_code(repo, snapshot=True)
    assert contents(checkout(pin, repo, tmp_path / "code")) == contents(repo)
    assert "<<<<<<<" in (tmp_path / "code/both").read_text()
    assert fingerprint(repo) == before


def test_a_repository_that_cannot_be_written(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "new.py").touch()
    planned = pin_code(repo, snapshot=True, write=False)
    monkeypatch.setattr("windlass.pin.code.snapshot.os.access", lambda path, mode: mode != os.W_OK)
    assert pin_code(repo, snapshot=True, write=False) == planned
    with pytest.raises(AccessError) as caught:
        pin_code(repo, snapshot=True)
    assert caught.value.message == f"cannot write into the repository's objects: {repo}/.git/objects"
