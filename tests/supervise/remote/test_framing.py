from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.supervise.remote.framing import FrameReader, pack, unpack

MESSAGE = pack({"a": [1, "x"]}, [b"one\n", b"", b"\0two"])


@given(pieces=st.lists(st.binary(max_size=50), max_size=5), header=st.dictionaries(st.text(max_size=5), st.integers()))
def test_what_is_packed_is_unpacked(pieces: list[bytes], header: dict[str, int]) -> None:
    assert unpack(pack(header, pieces)) == (header, pieces)


def test_a_message_that_was_truncated_anywhere_is_refused() -> None:
    accepted = [end for end in range(len(MESSAGE)) if not _is_refused(MESSAGE[:end])]
    assert accepted == [], "lengths at which a truncated message was accepted"


def test_a_message_with_one_changed_byte_is_refused() -> None:
    accepted = []
    for index in range(len(MESSAGE)):
        changed = bytearray(MESSAGE)
        changed[index] ^= 1
        if not _is_refused(bytes(changed)):
            accepted.append(index)
    assert accepted == [], "bytes whose change was accepted"


def test_a_message_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ValueError, match="truncated or changed"):
        unpack(MESSAGE + b"x")


def test_a_reader_of_a_message_truncated_anywhere_raises_at_its_end() -> None:
    for end in range(len(MESSAGE)):
        with pytest.raises(ValueError) as caught:
            FrameReader(io.BytesIO(MESSAGE[:end])).finish()
        message = str(caught.value)
        assert "truncated" in message or "no frame header" in message, f"cut at {end}: {message}"


def _is_refused(message: bytes) -> bool:
    try:
        unpack(message)
    except ValueError:
        return True
    return False


def test_a_reader_reads_its_content_and_not_what_follows_it() -> None:
    reader = FrameReader(io.BytesIO(MESSAGE + b"more"))
    assert reader.header() == {"header": {"a": [1, "x"]}, "sizes": [4, 0, 4]}
    assert reader.read(2) == b"on"
    assert reader.read() == b"e\n\0two"
    reader.finish()
