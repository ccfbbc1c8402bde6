from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.record import frames
from windlass.record.frames import Record, decode, encode, read_frames

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)
_NAMES = st.text(min_size=1).filter(lambda name: name not in {"kind", "writer", "seq", "at"})
_RECORDS = st.builds(
    Record,
    kind=st.text(),
    writer=st.text(),
    seq=st.integers(0),
    at=st.integers(0, 2**40).map(lambda number: number / 64),
    data=st.dictionaries(_NAMES, _JSON, max_size=4),
)


def sample(num_records: int) -> list[Record]:
    return [
        Record("note", "w", seq, 1.5 * seq, {"message": f"line {seq}\n \u00e9 \U0001f600"})
        for seq in range(1, num_records + 1)
    ]


def whole(body: bytes) -> bytes:
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def test_the_format_is_as_documented() -> None:
    line = encode(Record("note", "w", 1, 2.5, {"message": "hi"}))
    body = b'{"kind":"note","writer":"w","seq":1,"at":2.5,"message":"hi"}'
    assert line == b"%08x %08x " % (len(body), zlib.crc32(body)) + body + b"\n"


@settings(max_examples=60, deadline=None)
@given(_RECORDS)
def test_every_record_comes_back(record: Record) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == decode(line[:-1]) == record


@settings(max_examples=40, deadline=None)
@given(st.lists(_RECORDS, max_size=4))
def test_many_records_come_back(records: list[Record]) -> None:
    content = b"".join(map(encode, records))
    assert read_frames(content) == (records, len(content), 0)


@pytest.mark.parametrize("name", ["kind", "writer", "seq", "at"])
def test_a_fact_may_not_take_the_name_of_a_field(name: str) -> None:
    with pytest.raises(ValueError, match=f"a note record cannot hold facts named \\['{name}'\\]"):
        encode(Record("note", "w", 1, 1.0, {name: 1}))


def test_a_torn_tail_at_every_byte() -> None:
    records = sample(3)
    lines = [encode(record) for record in records]
    whole_bytes = len(lines[0] + lines[1])
    for length in range(len(lines[2])):
        assert read_frames(lines[0] + lines[1] + lines[2][:length]) == (records[:2], whole_bytes, 0)


def test_a_flipped_bit_anywhere_costs_at_most_the_lines_it_touches() -> None:
    records = sample(3)
    content = b"".join(map(encode, records))
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            found, end, num_damaged = read_frames(bytes(flipped))
            lost = [record for record in records if record not in found]
            assert all(record in records for record in found), "a record that nobody wrote"
            assert len(lost) <= (2 if content[position : position + 1] == b"\n" else 1)
            assert num_damaged <= 2
            assert end <= len(content)


def test_damage_in_the_middle_is_counted_and_at_the_end_it_is_a_tail() -> None:
    good = [encode(record) for record in sample(3)]
    damaged = good[1][:-5] + b"xxxx\n"
    assert read_frames(good[0] + damaged + good[2])[1:] == (len(good[0] + damaged + good[2]), 1)
    assert read_frames(good[0] + good[2] + damaged)[1:] == (len(good[0] + good[2]), 0)
    assert read_frames(damaged) == ([], 0, 0)


@pytest.mark.parametrize("body", [b"[1]", b"7", b"null", b'"text"', b'{"kind":"x"}', b"{broken", b"1,2", b"", b"{}"])
def test_a_whole_line_that_is_no_record_is_damage(body: bytes) -> None:
    good = [encode(record) for record in sample(2)]
    assert decode(whole(body)) is None
    records, _, num_damaged = read_frames(good[0] + whole(body) + good[1])
    assert (records, num_damaged) == (sample(2), 1)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(content: bytes) -> None:
    records, end, _ = read_frames(content)
    assert records == []
    assert end == 0


def test_more_records_than_are_parsed_at_once() -> None:
    records = sample(1000)
    content = b"".join(map(encode, records))
    assert read_frames(content) == (records, len(content), 0)


def test_skipped_kinds_are_passed_over_and_count_as_read() -> None:
    lines = [
        encode(Record(kind, "w", seq, 1.0, {}))
        for seq, kind in enumerate(["metrics", "note", "metrics-2", "metrics"], 1)
    ]
    records, end, num_damaged = read_frames(b"".join(lines), skip=["metrics"])
    assert [record.kind for record in records] == ["note", "metrics-2"]
    assert (end, num_damaged) == (len(b"".join(lines)), 0)


def test_the_body_is_plain_json_for_other_tools() -> None:
    line = encode(Record("note", "w", 1, 1.0, {"message": "\u2028 \ud800"}))
    assert json.loads(line[18:]) == {"kind": "note", "writer": "w", "seq": 1, "at": 1.0, "message": "\u2028 \ud800"}
    assert line.isascii()


_LINES = st.lists(st.sampled_from([encode(record) for record in sample(6)]), max_size=5).map(b"".join)
_BLOWS = st.lists(st.tuples(st.integers(0, 400), st.sampled_from([b"", b"\n", b" ", b"\t", b"0", b"A", b"-", b"\xff"])))


@settings(max_examples=200, deadline=None)
@given(_LINES, _BLOWS, st.integers(0, 400))
def test_lines_checked_together_are_read_as_one_by_one(
    content: bytes, blows: list[tuple[int, bytes]], num_cut: int
) -> None:
    for place, byte in blows:
        content = content[:place] + byte + content[place + 1 :]
    for torn in (content, content[: len(content) - num_cut]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "_bodies_if_all_whole", lambda _: None)
            expected = read_frames(torn)
        assert read_frames(torn) == expected
