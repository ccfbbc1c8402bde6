from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.backends.site_shell import LocalShell
from windlass.cluster.nodes.sync import fetch_path, push_path
from windlass.core.errors import NotFoundError, PreconditionError, UsageError


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a node that this machine plays."""
    found = tmp_path / "node"
    found.mkdir()
    monkeypatch.setenv("HOME", str(found))
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "src"
    (found / "deep" / "__pycache__").mkdir(parents=True)
    (found / "a b.py").write_text("x")
    (found / "deep" / "tool").write_text("y")
    (found / "deep" / "tool").chmod(0o755)
    (found / "deep" / "__pycache__" / "z.pyc").write_text("z")
    (found / "deep" / ".gitignore").write_text("*.tmp\n")
    (found / "deep" / "one.tmp").write_text("t")
    (found / "link").symlink_to("a b.py")
    return found


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_a_folder_s_content_goes_into_the_folder_there_and_other_files_stay(node: Path, source: Path) -> None:
    (node / "there").mkdir()
    (node / "there" / "mine").write_text("mine")
    push_path(source, "~/there", LocalShell())
    assert names(node / "there") == sorted([*names(source), "mine"])
    assert (node / "there" / "deep" / "tool").stat().st_mode & 0o777 == 0o755
    assert os.readlink(node / "there" / "link") == "a b.py"


def test_excludes_have_the_meaning_of_rsync(node: Path, source: Path) -> None:
    push_path(source, "there", LocalShell(), exclude=["__pycache__", "/link"], exclude_from=[".gitignore"])
    assert names(node / "there") == ["a b.py", "deep/.gitignore", "deep/tool"]


@pytest.mark.parametrize(("there", "found"), [("x/y.py", "x/y.py"), ("x/", "x/a b.py"), ("~/z", "z")])
def test_a_file_goes_to_its_path_or_into_a_folder(node: Path, source: Path, there: str, found: str) -> None:
    push_path(source / "a b.py", there, LocalShell())
    assert (node / found).read_text() == "x"


def test_what_is_fetched_is_what_was_there(node: Path, source: Path, tmp_path: Path) -> None:
    push_path(source, "there", LocalShell())
    fetch_path("there", tmp_path / "back", LocalShell())
    assert names(tmp_path / "back") == names(source)
    fetch_path("there/a b.py", tmp_path / "other.py", LocalShell())
    fetch_path("there/a b.py", tmp_path / "back" / "deep", LocalShell())
    assert (tmp_path / "other.py").read_text() == (tmp_path / "back" / "deep" / "a b.py").read_text() == "x"


def test_a_large_file_is_fetched_in_pieces(node: Path, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 33  # two pieces and a bit
    (node / "large").write_bytes(content)
    fetch_path("large", tmp_path / "here", LocalShell())
    assert (tmp_path / "here").read_bytes() == content


def test_what_is_missing_or_cannot_be_written_is_named(node: Path, source: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file or folder: .*/none") as missing:
        push_path(tmp_path / "none", "there", LocalShell())
    assert missing.value.code == "file-not-found"
    with pytest.raises(NotFoundError, match="this machine: no such file or folder: none"):
        fetch_path("none", tmp_path / "back", LocalShell())
    with pytest.raises(UsageError, match="invalid path `~other/x`"):
        push_path(source, "~other/x", LocalShell())
    (node / "file").write_text("")
    with pytest.raises(PreconditionError, match="this machine: cannot copy") as failed:
        push_path(source, "file/below", LocalShell())
    assert failed.value.code == "copy-failed"


def test_excludes_without_rsync_say_what_to_install(
    node: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreconditionError, match="`exclude` needs rsync") as caught:
        push_path(source, "there", LocalShell(), exclude=["x"])
    assert caught.value.code == "program-missing"
