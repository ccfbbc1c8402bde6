"""TensorBoard's event files, written byte for byte: records with checksums around protocol buffers.

An event file is only ever appended to, so a follower that died can go on in the same file.

Source: TensorFlow `core/lib/io/record_writer.h` (framing, masked CRC32C), `event.proto`, `summary.proto`, and
TensorBoard `plugins/hparams/plugin_data.proto`; RFC 3720, appendix B.4 (CRC32C).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["header", "hparams_end", "hparams_start", "scalars"]

_FIRST_VERSION = b"brain.Event:2"
_HPARAMS = "hparams"
_SUCCESS, _FAILURE = 1, 2


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_CRC = _crc_table()


def _masked_crc(content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return b"".join((length, struct.pack("<I", _masked_crc(length)), event, struct.pack("<I", _masked_crc(event))))


def header(at: float) -> bytes:
    """The record that every event file begins with; `at` is wall time in seconds."""
    return _framed(_double(1, at) + _bytes(3, _FIRST_VERSION))


def scalars(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """One event with a number per tag."""
    summary = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
    return _framed(_double(1, at) + _varint_field(2, step) + _bytes(5, summary))


def hparams_start(at: float, values: Mapping[str, Any], metrics: Iterable[str], group: str) -> bytes:
    """Two events for the HPARAMS page: what the parameters and metrics are called, and this trial's values."""
    infos = b"".join(_bytes(4, _text(1, name)) for name in values)
    named = b"".join(_bytes(5, _bytes(1, _text(2, tag))) for tag in metrics)
    start = b"".join(_bytes(1, _text(1, name) + _bytes(2, _value(value))) for name, value in values.items())
    session = start + _text(4, group) + _double(5, at)
    return _plugin(at, "experiment", _bytes(2, infos + named)) + _plugin(at, "session_start_info", _bytes(3, session))


def hparams_end(at: float, *, is_failed: bool) -> bytes:
    """The event that says how a trial ended."""
    session = _varint_field(1, _FAILURE if is_failed else _SUCCESS) + _double(2, at)
    return _plugin(at, "session_end_info", _bytes(4, session))


def _plugin(at: float, tag: str, content: bytes) -> bytes:
    metadata = _bytes(1, _text(1, _HPARAMS) + _bytes(2, content))
    value = _text(1, f"_hparams_/{tag}") + _bytes(9, metadata)
    return _framed(_double(1, at) + _bytes(5, _bytes(1, value)))


def _value(value: Any) -> bytes:
    """A `google.protobuf.Value`: null, number, text or truth; anything else as its text."""
    if value is None:
        return _varint_field(1, 0, is_explicit=True)
    if isinstance(value, bool):
        return _varint_field(4, int(value), is_explicit=True)
    if isinstance(value, int | float):
        return _double(2, float(value), is_explicit=True)
    return _text(3, str(value), is_explicit=True)


# ------------------------------------------------------------------------------------------------- protocol buffers


def _varint(number: int) -> bytes:
    found = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varint_field(field: int, number: int, *, is_explicit: bool = False) -> bytes:
    return _varint(field << 3) + _varint(number) if number or is_explicit else b""


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str, *, is_explicit: bool = False) -> bytes:
    return _bytes(field, text.encode()) if text or is_explicit else b""


def _double(field: int, value: float, *, is_explicit: bool = False) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value) if value or is_explicit else b""


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond single precision
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed
