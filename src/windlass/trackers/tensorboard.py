"""TensorBoard: event files, written without TensorBoard's libraries.

Source: `event.proto`, `summary.proto`, `record_writer.cc` (length, masked CRC-32C of it, event, masked CRC-32C of it) and
`plugins/hparams/plugin_data.proto` of TensorFlow and TensorBoard.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["EventFile", "header", "hparams_end", "hparams_start", "restart", "scalars"]

_FIRST_VERSION = b"brain.Event:2"
_HPARAMS = "hparams"
_SUCCESS, _FAILURE = 1, 2
_START = 1


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
    """Return the first record of an event file; `at` is the wall time in seconds."""
    return _framed(_double(1, at) + _bytes(3, _FIRST_VERSION))


def scalars(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return an event with a number for each tag."""
    summary = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
    return _framed(_double(1, at) + _varint_field(2, step) + _bytes(5, summary))


def restart(at: float, step: int) -> bytes:
    """Return an event by which TensorBoard discards earlier values of this step and later ones."""
    return _framed(_double(1, at) + _varint_field(2, step) + _bytes(7, _varint_field(1, _START)))


def hparams_start(at: float, values: Mapping[str, Any], metrics: Iterable[str], group: str) -> bytes:
    """Return the two events for the HPARAMS page: names of parameters and metrics, and this trial's values."""
    infos = b"".join(_bytes(4, _text(1, name)) for name in values)
    named = b"".join(_bytes(5, _bytes(1, _text(2, tag))) for tag in metrics)
    start = b"".join(_bytes(1, _text(1, name) + _bytes(2, _value(value))) for name, value in values.items())
    session = start + _text(4, group) + _double(5, at)
    return _plugin(at, "experiment", _bytes(2, infos + named)) + _plugin(at, "session_start_info", _bytes(3, session))


def hparams_end(at: float, *, is_failed: bool) -> bytes:
    """Return the event for the end of a trial."""
    session = _varint_field(1, _FAILURE if is_failed else _SUCCESS) + _double(2, at)
    return _plugin(at, "session_end_info", _bytes(4, session))


class EventFile:
    """Event file of a process; a file that starts at a step replaces that step and later ones of earlier files.

    Args:
        step: the first step that is written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        at = time.time()
        # The time has whole seconds: the process and the step keep a quick restart from writing to the same file.
        name = f"events.out.tfevents.{int(at):010d}.{os.uname().nodename}.{os.getpid()}.step-{step}"
        self._file = (folder / name).open("ab")
        self._file.write(header(at) + restart(at, step))
        self._file.flush()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step, and pass them to the operating system."""
        self._file.write(scalars(time.time(), step, values))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plugin(at: float, tag: str, content: bytes) -> bytes:
    metadata = _bytes(1, _text(1, _HPARAMS) + _bytes(2, content))
    value = _text(1, f"_hparams_/{tag}") + _bytes(9, metadata)
    return _framed(_double(1, at) + _bytes(5, _bytes(1, value)))


def _value(value: Any) -> bytes:
    """Return a `google.protobuf.Value` for null, a number, a string or a boolean; other values become strings."""
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
    except OverflowError:  # outside the range of single precision
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed
