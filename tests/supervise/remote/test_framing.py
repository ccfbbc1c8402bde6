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


@pytest.mark.parametrize("end", range(len(MESSAGE)))
def test_a_message_that_was_cut_anywhere_is_refused(end: int) -> None:
    with pytest.raises(ValueError):
        unpack(MESSAGE[:end])


@pytest.mark.parametrize("index", range(len(MESSAGE)))
def test_a_message_with_one_changed_byte_is_refused(index: int) -> None:
    changed = bytearray(MESSAGE)
    changed[index] ^= 1
    with pytest.raises(ValueError):
        unpack(bytes(changed))


def test_a_message_with_something_behind_it_is_refused() -> None:
    with pytest.raises(ValueError, match="cut or changed"):
        unpack(MESSAGE + b"x")


@pytest.mark.parametrize("end", range(len(MESSAGE)))
def test_an_inflow_that_was_cut_anywhere_says_so_at_its_end(end: int) -> None:
    with pytest.raises(ValueError, match="cut"):
        FrameReader(io.BytesIO(MESSAGE[:end])).finish()


def test_an_inflow_reads_its_content_and_not_what_follows_it() -> None:
    inflow = FrameReader(io.BytesIO(MESSAGE + b"more"))
    assert inflow.header() == {"header": {"a": [1, "x"]}, "sizes": [4, 0, 4]}
    assert inflow.read(2) == b"on"
    assert inflow.read() == b"e\n\0two"
    inflow.finish()
