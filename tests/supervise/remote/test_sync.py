"""The site's half of a mirror; both halves together: tests/launcher/remote/test_mirror.py."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.record.frames import Record, encode
from windlass.supervise.remote.framing import pack, unpack
from windlass.supervise.remote.server import serve
from windlass.supervise.remote.sync import whole_end

LINES = [encode(Record("note", "w", seq, 0.0, {"message": "x" * seq})) for seq in range(1, 6)]
REQUEST: dict[str, Any] = {"appends": [], "puts": [], "own": [], "sizes": {}, "logs": True, "closed": [], "limit": 1000}


def ask(command: str, header: dict[str, Any], *pieces: bytes) -> tuple[dict[str, Any], list[bytes]]:
    sink = io.BytesIO()
    assert serve(command, io.BytesIO(pack(header, pieces)), sink) == 0
    return unpack(sink.getvalue())


@given(
    num_lines=st.integers(0, 5),
    tail=st.sampled_from([b"", b"0", LINES[0][:-1], b"\0" * 30, b"junk\n", b"\n", b"junk\n\0"]),
)
def test_only_whole_records_count(num_lines: int, tail: bytes) -> None:
    whole = b"".join(LINES[:num_lines])
    assert whole_end(whole + tail) == len(whole)


def test_damage_in_front_of_a_whole_record_is_part_of_the_file() -> None:
    content = LINES[0] + b"junk\n" + LINES[1]
    assert whole_end(content) == len(content)


@pytest.mark.parametrize("path", ["../other/journal/x.wj", "/etc/passwd", "journal/../../x"])
def test_no_path_leaves_the_folder_of_the_run(tmp_path: Path, path: str) -> None:
    (tmp_path / "run" / "journal").mkdir(parents=True)
    root = str(tmp_path / "run")
    for command, header in (
        ("sync", {**REQUEST, "root": root, "appends": [(path, 0)]}),
        ("sync", {**REQUEST, "root": root, "puts": [path]}),
        ("sync", {**REQUEST, "root": root, "own": [f"../{path}"]}),
        ("fetch", {"root": root, "under": path}),
        ("fetch", {"root": root, "pieces": [(path, 0, 10)]}),
    ):
        answer, pieces = ask(command, header, b"x")
        assert "outside the run's folder" in answer["error"]["message"], command
        assert pieces == []
    assert not (tmp_path / "other").exists()


def test_a_gap_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    request = {**REQUEST, "root": str(tmp_path), "appends": [("journal/c.wj", 10)], "own": ["c.wj"]}
    answer, _ = ask("sync", request, b"abc")
    assert answer["own"] == {"c.wj": 0}


def test_a_piece_that_comes_twice_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    for piece in (LINES[0], LINES[0], LINES[0] + LINES[1]):
        request = {**REQUEST, "root": str(tmp_path), "appends": [("journal/c.wj", 0)], "own": ["c.wj"]}
        answer, _ = ask("sync", request, piece)
    assert (tmp_path / "journal" / "c.wj").read_bytes() == LINES[0] + LINES[1]
    assert answer["own"] == {"c.wj": len(LINES[0] + LINES[1])}


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    answer, _ = ask("sync", {**REQUEST, "root": str(tmp_path)})
    assert answer["error"]["code"] == "run-gone-at-site"
    assert answer["error"]["exit"] == 4
