from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.files import sha256_file
from windlass.launcher.archive.secret_search import find_secrets
from windlass.runs.archive.contents import (
    LIST,
    Contents,
    Item,
    is_safe,
    items_below,
    read_contents,
    stays_inside,
    take_out,
    write_items,
)
from windlass.runs.archive.stream import check_name, member, open_for_reading, open_for_writing

RUN = "exp-00000001"


def item(path: str, content: bytes = b"x", link: str = "") -> Item:
    digest = hashlib.sha256(link.encode() if link else content).hexdigest()
    return Item(path=path, size=0 if link else len(content), sha256=digest, link=link)


def pack(path: Path, contents: Contents, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    """An archive with any members behind a list."""
    listing = contents.to_bytes()
    with open_for_writing(path, path.name) as archive:
        for info, content in [(member(f"{RUN}/{LIST}", len(listing)), listing), *members]:
            archive.addfile(info, io.BytesIO(content))
    return path


def unpack(path: Path, folder: Path) -> Contents:
    with open_for_reading(path, folder.with_name("plain.tar")) as archive:
        contents = read_contents(path, archive)
        take_out(path, archive, contents, folder)
    return contents


def refused(path: Path, tmp_path: Path) -> str:
    with pytest.raises(PreconditionError) as caught:
        unpack(path, tmp_path / "out")
    assert caught.value.code == "archive-damaged"
    return caught.value.message


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_bytes(b"content")
    (folder / "a" / "tool").write_bytes(b"#!/bin/sh\n")
    (folder / "a" / "tool").chmod(0o755)
    (folder / "empty").write_bytes(b"")
    (folder / "na\u00efve \udcff").write_bytes(b"any name")
    (folder / "latest").symlink_to("a/b/file")
    return folder


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar", ".tgz"])
def test_what_goes_in_comes_out(tmp_path: Path, tree: Path, suffix: str) -> None:
    left_out: dict[str, str] = {}
    contents = Contents(run_id=RUN, items=tuple(items_below(tree, "run", left_out)), left_out=left_out)
    path = tmp_path / f"a{suffix}"
    listing = contents.to_bytes()
    for each in (path, tmp_path / f"b{suffix}"):
        with open_for_writing(each, each.name) as archive:
            archive.addfile(member(f"{RUN}/{LIST}", len(listing)), io.BytesIO(listing))
            write_items(archive, RUN, contents.items)
    assert path.read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    assert unpack(path, tmp_path / "out").digest == contents.digest
    found = tmp_path / "out" / "run"
    assert (found / "a" / "b" / "file").read_bytes() == b"content"
    assert (found / "latest").read_bytes() == b"content"
    assert (found / "na\u00efve \udcff").read_bytes() == b"any name"
    assert (found / "a" / "tool").stat().st_mode & 0o777 == 0o755
    assert (found / "empty").stat().st_mtime == int((tree / "empty").stat().st_mtime)
    again = Contents(run_id=RUN, items=tuple(items_below(found, "run", {})))
    assert again.digest == contents.digest
    assert left_out == {}


def test_links_that_leave_the_run_stay_out(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "d").mkdir(parents=True)
    for name, target in (("abs", "/etc/passwd"), ("up", "../.."), ("through", "d/../../x"), ("d/in", "../abs")):
        (folder / name).symlink_to(target)
    left_out: dict[str, str] = {}
    assert [each.path for each in items_below(folder, "run", left_out)] == ["run/d/in"]
    assert left_out["run/abs"] == "a link out of the run: /etc/passwd"
    assert sorted(left_out) == ["run/abs", "run/through", "run/up"]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "run/../../x", "run//x", "run/./x", "run/x\0", ".."])
def test_paths_that_leave_the_folder_are_not_safe(path: str) -> None:
    assert not is_safe(path)
    with pytest.raises(ValueError, match="points outside the run's folder"):
        Contents.from_bytes(Contents(run_id=RUN, items=(item(path),)).to_bytes())


@pytest.mark.parametrize("link", ["/etc", "../..", "../../..", "x/../../..", "a/../b", "x\0"])
def test_links_that_leave_the_folder_are_refused(link: str) -> None:
    assert not stays_inside("run/out/file", f"../{link}" if link.startswith("..") else link)
    with pytest.raises(ValueError, match="points outside the run's folder"):
        Contents.from_bytes(Contents(run_id=RUN, items=(item("run/file", link=link),)).to_bytes())


def test_a_path_of_1500_levels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\.\.\. is more than 200 levels deep"):
        Contents.from_bytes(Contents(run_id=RUN, items=(item("run/" + "d/" * 1500 + "f"),)).to_bytes())


def test_nothing_lies_behind_a_link() -> None:
    items = (item("run/out/a", link="."), item("run/out/a/b"))
    with pytest.raises(ValueError, match="'run/out/a/b' is below a link"):
        Contents.from_bytes(Contents(run_id=RUN, items=items).to_bytes())


def test_an_archive_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    assert refused(path, tmp_path).endswith(f"is not a valid archive of a run: it does not start with {LIST}")
    path.write_bytes(b"no archive")
    assert "is not a valid archive of a run" in refused(path, tmp_path)
    path.write_bytes(b"")
    assert "is not a valid archive of a run" in refused(path, tmp_path)


Members = list[tuple[tarfile.TarInfo, bytes]]


def typed(name: str, kind: bytes, linkname: str = "") -> tarfile.TarInfo:
    info = member(f"{RUN}/{name}", 0)
    info.type, info.linkname = kind, linkname
    return info


ATTACKS: dict[str, tuple[Callable[[], Members], str]] = {
    "other content": (lambda: [(member(f"{RUN}/run/f", 1), b"y")], "run/f does not match its sha256 in the file list"),
    "other size": (lambda: [(member(f"{RUN}/run/f", 2), b"xx")], "differs from the file in the file list"),
    "missing": (list, "'exp-00000001/run/f' is missing"),
    "one more": (
        lambda: [(member(f"{RUN}/run/f", 1), b"x"), (member(f"{RUN}/run/g", 1), b"x")],
        "'exp-00000001/run/g' is not in the file list",
    ),
    "twice": (lambda: [(member(f"{RUN}/run/f", 1), b"x")] * 2, "'exp-00000001/run/f' is not in the file list"),
    "traversal": (lambda: [(member("../../evil", 1), b"x")], "'../../evil' is not in the file list"),
    "absolute": (lambda: [(member("/tmp/evil", 1), b"x")], "'/tmp/evil' is not in the file list"),
    "symbolic link": (
        lambda: [(typed("run/f", tarfile.SYMTYPE, "/etc"), b"")],
        "differs from the file in the file list",
    ),
    "hard link": (
        lambda: [(typed("run/f", tarfile.LNKTYPE, "/etc/passwd"), b"")],
        "differs from the file in the file list",
    ),
    "device": (lambda: [(typed("run/f", tarfile.CHRTYPE), b"")], "differs from the file in the file list"),
    "pipe": (lambda: [(typed("run/f", tarfile.FIFOTYPE), b"")], "differs from the file in the file list"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_members_that_are_not_as_listed_are_refused(tmp_path: Path, name: str) -> None:
    members, message = ATTACKS[name]
    path = pack(tmp_path / "x.tar.gz", Contents(run_id=RUN, items=(item("run/f"),)), members())
    assert message in refused(path, tmp_path)
    assert not (tmp_path / "evil").exists()


def test_a_folder_and_a_file_of_one_name_are_refused(tmp_path: Path) -> None:
    contents = Contents(run_id=RUN, items=(item("run/f"), item("run/f/g")))
    members = [(member(f"{RUN}/run/f", 1), b"x"), (member(f"{RUN}/run/f/g", 1), b"x")]
    assert "conflicts with another path" in refused(pack(tmp_path / "x.tar", contents, members), tmp_path)


@pytest.mark.parametrize("name", ["a" * 300, ("a" * 100 + "/") * 50 + "f"])
def test_a_name_that_is_too_long_is_refused(tmp_path: Path, name: str) -> None:
    contents = Contents(run_id=RUN, items=(item(f"run/{name}"),))
    path = pack(tmp_path / "x.tar", contents, [(member(f"{RUN}/run/{name}", 1), b"x")])
    assert "is too long for this file system" in refused(path, tmp_path)
    linked = Contents(run_id=RUN, items=(item(f"run/{name}", link="g"),))
    path = pack(tmp_path / "y.tar", linked, [(typed(f"run/{name}", tarfile.SYMTYPE, "g"), b"")])
    assert "is too long for this file system" in refused(path, tmp_path)


def test_a_link_below_a_file_is_refused(tmp_path: Path) -> None:
    contents = Contents(run_id=RUN, items=(item("run/f"), item("run/f/g", link="h")))
    members = [(member(f"{RUN}/run/f", 1), b"x"), (typed("run/f/g", tarfile.SYMTYPE, "h"), b"")]
    assert "conflicts with another path" in refused(pack(tmp_path / "x.tar", contents, members), tmp_path)


@pytest.mark.parametrize("mtime", [-(10**30), 10**30])
def test_a_time_that_no_file_can_have_is_refused(mtime: int) -> None:
    listed = Contents(run_id=RUN, items=(replace(item("run/f"), mtime=mtime),)).to_bytes()
    with pytest.raises(ValueError, match=f"run/f: invalid time {mtime}"):
        Contents.from_bytes(listed)


def flipped(content: bytes) -> Iterator[tuple[int, bytes]]:
    step = max(1, len(content) // 60)
    for place in range(0, len(content), step):
        yield place, content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


def test_no_flipped_byte_and_no_cut_gives_other_files(tmp_path: Path) -> None:
    contents = Contents(run_id=RUN, items=(item("run/f", b"hello" * 50),))
    whole = pack(tmp_path / "x.tar.gz", contents, [(member(f"{RUN}/run/f", 250), b"hello" * 50)]).read_bytes()
    broken = tmp_path / "y.tar.gz"
    variants = [*flipped(whole), *((-cut, whole[:cut]) for cut in range(0, len(whole), 37))]
    num_refused = 0
    for number, (_, content) in enumerate(variants):
        broken.write_bytes(content)
        out = tmp_path / f"out{number}"
        try:
            found = unpack(broken, out)
        except PreconditionError:
            num_refused += 1
        else:
            assert found.digest == contents.digest
            assert (out / "run" / "f").read_bytes() == b"hello" * 50
    assert num_refused > len(variants) // 2


def test_a_changed_list_is_refused(tmp_path: Path) -> None:
    listing = Contents(run_id=RUN, items=(item("run/f"),)).to_bytes().replace(b'"size":1', b'"size":2')
    path = tmp_path / "x.tar.gz"
    with open_for_writing(path, path.name) as archive:
        archive.addfile(member(f"{RUN}/{LIST}", len(listing)), io.BytesIO(listing))
    assert "its file list was changed" in refused(path, tmp_path)


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path, tree: Path) -> None:
    items = list(items_below(tree, "run", {}))
    (tree / "a" / "b" / "file").write_bytes(b"CONTENT")
    with (
        pytest.raises(PreconditionError, match="changed during the export") as caught,
        open_for_writing(tmp_path / "x", "x.tar") as archive,
    ):
        write_items(archive, RUN, items)
    assert caught.value.code == "archive-changed"


def test_a_file_that_is_deleted_meanwhile_is_an_error(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends writes files under temporary names and renames them."""
    items = list(items_below(tree, "run", {}))
    digest = sha256_file

    def digest_and_delete(path: Path) -> str:
        path.unlink()
        return digest(path)

    with monkeypatch.context() as patch:
        patch.setattr("windlass.runs.archive.contents.sha256_file", digest_and_delete)
        with pytest.raises(PreconditionError, match="changed during the export") as caught:
            list(items_below(tree, "run", {}))
    assert caught.value.code == "archive-changed"
    with (
        pytest.raises(PreconditionError, match="changed during the export"),
        open_for_writing(tmp_path / "x", "x.tar") as archive,
    ):
        write_items(archive, RUN, items)
    with pytest.raises(PreconditionError, match="changed during the export"):
        find_secrets(items, {"KEY": b"a-value-to-look-for"})


def test_only_known_names_are_written() -> None:
    with pytest.raises(UsageError) as caught:
        check_name(Path("run.zip"))
    assert caught.value.code == "file-suffix"
