"""What a site takes in: whole folders, and nothing outside of them."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from windlass.supervise.remote.framing import frame_line, pack
from windlass.supervise.remote.framing import unpack as opened
from windlass.supervise.remote.server import receive_folders, serve


def member(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(content), link, 0o640
    return info, content


def shipment(targets: list[tuple[str, Path]], *members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    body = io.BytesIO()
    body.write(json.dumps({"targets": [(key, str(path)) for key, path in targets]}).encode() + b"\n")
    with tarfile.open(fileobj=body, mode="w|") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    content = body.getvalue()
    return io.BytesIO(frame_line(hashlib.sha256(content).hexdigest(), len(content)) + content)


def test_folders_appear_with_what_is_in_them(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    made = receive_folders(
        shipment([("0", target)], member("0/a/b.txt", b"text"), member("0/l", kind=tarfile.SYMTYPE, link="a/b.txt"))
    )
    assert made == {"made": [str(target)]}
    assert (target / "a" / "b.txt").read_bytes() == (target / "l").read_bytes() == b"text"
    assert (target / "a" / "b.txt").stat().st_mode & 0o777 == 0o640
    assert os.listdir(target.parent) == ["run"]


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    assert receive_folders(shipment([("0", old), ("1", new)], member("0/a", b"x"), member("1/b", b"y"))) == {
        "made": [str(new)]
    }
    assert list(old.iterdir()) == []
    assert (new / "b").read_bytes() == b"y"


@pytest.mark.parametrize(
    "members",
    [
        [member("0/../evil", b"x")],
        [member("0//etc/evil", b"x")],
        [member("0/out", kind=tarfile.SYMTYPE, link=".."), member("0/out/evil", b"x")],
        [member("0/a/../../evil", b"x")],
    ],
    ids=["parent", "absolute", "through a link", "up and out"],
)
def test_nothing_is_written_outside_of_its_folder(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    with pytest.raises(ValueError, match="outside its folder"):
        receive_folders(shipment([("0", tmp_path / "run")], *members))
    assert os.listdir(tmp_path) == []


def test_devices_and_pipes_are_left_out(tmp_path: Path) -> None:
    receive_folders(shipment([("0", tmp_path / "run")], member("0/pipe", kind=tarfile.FIFOTYPE), member("0/a")))
    assert os.listdir(tmp_path / "run") == ["a"]


def test_a_shipment_that_was_cut_or_changed_makes_nothing(tmp_path: Path) -> None:
    content = shipment([("0", tmp_path / "run")], member("0/a", b"x" * 3000)).getvalue()
    changed = content.replace(b"xxx", b"xyx", 1)
    for broken in (changed, *(content[:end] for end in range(0, len(content), 509))):
        with pytest.raises(ValueError):
            receive_folders(io.BytesIO(broken))
        assert os.listdir(tmp_path) == []


def test_what_a_killed_call_left_goes_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".run.1.aa.part", 90_000), (".run.2.bb.part", 60), (".other.3.cc.part", 90_000)):
        (tmp_path / name).mkdir()
        past = os.stat(tmp_path).st_mtime - age
        os.utime(tmp_path / name, (past, past))
    receive_folders(shipment([("0", tmp_path / "run")]))
    assert sorted(os.listdir(tmp_path)) == [".other.3.cc.part", ".run.2.bb.part", "run"]


@pytest.mark.parametrize("path", ["relative/delivery/x.json", "/etc/passwd", "/tmp/delivery/../../etc/x"])
def test_secrets_go_into_a_delivery_folder_only(path: str) -> None:
    sink = io.BytesIO()
    serve("deliver", io.BytesIO(pack({"path": path}, [b"x"])), sink)
    assert "refusing to write secrets there" in opened(sink.getvalue())[0]["error"]["message"]


def test_nothing_is_shipped_to_where_files_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_arguments: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", without)
    sink = io.BytesIO()
    request = shipment([("run", tmp_path / "site" / "run")], member("run/a", b"a"))
    assert serve("unpack", request, sink) == 0
    header, _ = opened(sink.getvalue())
    assert header["error"]["code"] == "no-file-locks"
    assert str(tmp_path / "site") in header["error"]["message"]
    assert os.listdir(tmp_path / "site") == []


def test_data_whose_folders_are_read_only_arrives_for_a_user_who_is_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [
        member("0/data", kind=tarfile.DIRTYPE),
        member("0/data/a", kind=tarfile.DIRTYPE),
        member("0/data/a/x.txt", b"x"),
    ]
    for info, _ in members:
        info.mode = 0o444 if info.isreg() else 0o555
    monkeypatch.chdir(tmp_path)
    is_root = os.geteuid() == 0
    if is_root:  # nobody, who passes by no permission
        os.chown(tmp_path, 65534, -1)
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            _write_into_read_only(Path("closed"))
        receive_folders(shipment([("0", Path("there"))], *members))
        assert Path("there/data/a/x.txt").read_bytes() == b"x"
        assert Path("there/data/a/x.txt").stat().st_mode & 0o777 == 0o444
    finally:
        if is_root:
            os.seteuid(0)
    assert sorted(os.listdir(tmp_path)) == ["closed", "there"]


def _write_into_read_only(folder: Path) -> None:
    folder.mkdir(mode=0o555)
    (folder / "x").write_text("x")
