from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from windlass.cluster.config import ClusterConfig
from windlass.cluster.nodes.sync import packed_files
from windlass.config.loading import from_data
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.supervise.node.files import INDEX, fetch_files, index_text, setup_line, unpack_files
from windlass.supervise.node.spec import NodeSpec


def config_of(files: dict[str, str], **more: object) -> ClusterConfig:
    return from_data(ClusterConfig, {"name": "lab", "place": {"ssh": {"hosts": ["h1"]}}, "files": files, **more})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    found = tmp_path / "src"
    (found / "deep").mkdir(parents=True)
    (found / "deep" / "tool").write_text("y")
    (found / "deep" / "tool").chmod(0o755)
    (found / "skip.tmp").write_text("z")
    (found / "link").symlink_to("deep/tool")
    os.link(found / "deep" / "tool", found / "same")
    (tmp_path / "one.txt").write_text("1")
    return found


def test_what_the_client_packs_is_unpacked_where_the_file_says(source: Path, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "opt"
    home.mkdir(mode=0o700)
    (home / "code").mkdir()
    (home / "code" / "link").symlink_to("old")
    files = {"~/code": str(source), str(elsewhere): str(source), "~/": str(tmp_path / "one.txt")}
    with packed_files(config_of(files, exclude=["*.tmp"])) as packed:
        unpack_files(io.BytesIO(packed.read_bytes()), home)
    for folder in (home / "code", elsewhere):
        assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == [
            "deep",
            "deep/tool",
            "link",
            "same",
        ]
        assert (folder / "deep" / "tool").stat().st_mode & 0o777 == 0o755
        assert (folder / "same").read_text() == "y"
        assert os.readlink(folder / "link") == "deep/tool"
    assert (home / "one.txt").read_text() == "1"
    assert home.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in home.iterdir()) == ["code", "one.txt"]


def test_files_that_are_missing_here_are_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="no such file or folder"),
        packed_files(config_of({"x": str(tmp_path / "no")})),
    ):
        pass


@pytest.mark.parametrize("name", ["7/x", "../x", "0/../../x", "x"])
def test_members_that_nobody_listed_are_refused(tmp_path: Path, name: str) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for member, text in ((INDEX, index_text(["there"])), (name, b"")):
            info = tarfile.TarInfo(member)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    content.seek(0)
    with pytest.raises(PreconditionError, match="unexpected member"):
        unpack_files(content, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_a_list_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("0/x"))
    content.seek(0)
    with pytest.raises(PreconditionError, match="no list of destinations"):
        unpack_files(content, tmp_path)


def test_a_head_that_does_not_respond_fails_the_set_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = NodeSpec(cluster="c", token="t", number=1, store="127.0.0.1:1", auth_token="secret")
    (tmp_path / "spec.json").write_bytes(spec.to_json())
    assert fetch_files(tmp_path) == 1
    assert capsys.readouterr().err.startswith("cannot copy `files` from the head: 127.0.0.1:1: ")


def test_the_line_finds_the_node_s_folder_by_its_token() -> None:
    folder = '"$HOME/.windlass/clusters/lab-1/$WINDLASS_NODE"'
    assert setup_line("lab-1") == f"python3 -I -S {folder}/windlass.pyz node-files {folder}"
