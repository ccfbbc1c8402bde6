"""Target for TensorBoard, with one event file per trial and the tags of Ray Tune's logger. Needs no library."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.followers.target import FileTarget, plain_values, trial_path
from windlass.tune.results.columns import NestedMetrics, flatten, is_nan

__all__ = ["TensorBoardTarget", "header", "hparams_end", "hparams_start", "scalars"]


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
    """Return the first record of an event file; `at` is the wall time in seconds."""
    return _framed(_double(1, at) + _bytes(3, _FIRST_VERSION))


def scalars(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return an event with a number for each tag."""
    summary = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
    return _framed(_double(1, at) + _varint_field(2, step) + _bytes(5, summary))


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


_NOT_SHOWN = ("config", "pid", "timestamp", "time_total_s", "training_iteration")
_TAG = "ray/tune/"


class TensorBoardTarget(FileTarget):
    """Target that writes `trials/<id>/events.out.tfevents.*`: `tensorboard --logdir <sweep>/trials` shows the sweep.

    Numbers become scalars at the trial's iteration (or its `timesteps_total`); drawn values become the HPARAMS page.
    Lists and NaN are omitted.
    """

    name = "tensorboard"
    patterns: ClassVar = ("trials/*/events.out.tfevents.*.windlass",)

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Add an event with all the numbers in the report."""
        path = _path(trial)
        if not self.begun(path):
            self.pieces.append(path, header(trial.suggested_at))
        step = int(result.get("timesteps_total") or result["training_iteration"])
        shown = plain_values({name: value for name, value in result.items() if name not in _NOT_SHOWN})
        values = {_TAG + name: value for name, value in shown.items() if not is_nan(value)}
        self.pieces.append(path, scalars(at, step, values))

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Add the trial's parameters and outcome."""
        if trial.last is None:
            return
        at = trial.ended_at or trial.suggested_at
        tags = [_TAG + name for name in plain_values(trial.last) if name not in _NOT_SHOWN]
        values = trial.assigned or flatten(trial.config)
        path = _path(trial)
        self.pieces.append(path, hparams_start(at, values, tags, trial.id))
        self.pieces.append(path, hparams_end(at, is_failed=is_failed))


def _path(trial: TrialHistory) -> str:
    return trial_path(trial, f"events.out.tfevents.{int(trial.suggested_at)}.windlass")
