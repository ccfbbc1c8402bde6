"""A job's folder out of a bundle, and what the results show of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError
from windlass.supervise.beaker.bundle import CONTENT, copy_growth, copy_outputs, unpack_bundle
from windlass.supervise.remote.framing import pack


def bundle_of(folder: Path, root: Path, messages: list[bytes]) -> Path:
    folder.mkdir()
    (folder / "windlass.pyz").write_bytes(b"zip")
    for number, message in enumerate(messages):
        (folder / f"message-{number}").write_bytes(message)
    named = [("sync", f"message-{number}") for number in range(len(messages))]
    (folder / CONTENT).write_text(json.dumps({"archive": str(root / "archives" / "w.pyz"), "messages": named}))
    return folder


def put(root: Path, **files: bytes) -> bytes:
    header = {"root": str(root), "appends": [], "puts": list(files), "own": [], "sizes": None}
    return pack(header, files.values())


def test_messages_are_read_in_order_and_may_be_read_again(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "r"
    (run / "journal").mkdir(parents=True)
    bundle = bundle_of(tmp_path / "bundle", tmp_path, [put(run, a=b"1", b=b"2"), put(run, a=b"3")])
    for _ in range(2):
        unpack_bundle(bundle)
        assert ((run / "a").read_bytes(), (run / "b").read_bytes()) == (b"3", b"2")
    assert (tmp_path / "archives" / "w.pyz").read_bytes() == b"zip"


@pytest.mark.parametrize("cut", [1, 60, 100])
def test_a_damaged_message_is_refused_and_changes_nothing(tmp_path: Path, cut: int) -> None:
    run = tmp_path / "runs" / "r"
    (run / "journal").mkdir(parents=True)
    bundle = bundle_of(tmp_path / "bundle", tmp_path, [put(run, a=b"1")[:-cut]])
    with pytest.raises((PreconditionError, ValueError)):
        unpack_bundle(bundle)
    assert not (run / "a").exists()


def test_copies_grow_as_their_files_do(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "results"
    log, journal = run / "logs" / "1" / "main" / "0.log", run / "journal" / "main.wj"
    for path in (log, journal):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"one")
    (run / "journal" / ".half.wj").write_bytes(b"x")
    assert copy_growth(run, target) == 6
    log.write_bytes(b"one and two")
    assert copy_growth(run, target) == 8
    assert copy_growth(run, target) == 0
    assert (target / "logs" / "1" / "main" / "0.log").read_bytes() == b"one and two"
    assert {path.name for path in (target / "journal").iterdir()} == {"main.wj"}


def test_outputs_come_whole_and_once(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "results"
    made = run / "out" / "main" / "deep" / "made"
    made.parent.mkdir(parents=True)
    made.write_text("first")
    copy_outputs(run, target)
    copy = target / "out" / "main" / "deep" / "made"
    assert copy.read_text() == "first"
    before = copy.stat().st_ctime_ns
    copy_outputs(run, target)
    assert copy.stat().st_ctime_ns == before
    made.write_text("second")
    copy_outputs(run, target)
    assert copy.read_text() == "second"
