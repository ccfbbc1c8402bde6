"""The wire format: one record is one line, `LLLLLLLL CCCCCCCC {json}` and a newline.

L is the length and C the crc32 of the JSON bytes, both in eight hex digits. A line that does not fit its own
numbers is damage: at the end of a file it is a torn write, elsewhere it is skipped and counted. The same frames
travel in a file and, where no storage is shared, on standard output.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Record", "decode", "encode", "read_frames"]

HEADER = 18
_OWN_FIELDS = frozenset({"kind", "writer", "seq", "at"})
Data = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One thing that happened.

    Attributes:
        kind: what happened; the names are in `windlass.record.events`.
        writer: who says so; one writer, one file.
        seq: number of the record in its writer's file, from 1, without gaps.
        at: wall time in seconds; shown to people, never used to decide.
        data: the facts, JSON values only.
    """

    kind: str
    writer: str
    seq: int
    at: float
    data: Data


def encode(record: Record) -> bytes:
    """The framed line of a record; raises ValueError when a fact has the name of one of the record's own fields."""
    if not _OWN_FIELDS.isdisjoint(record.data):
        raise ValueError(f"a {record.kind} record cannot hold facts named {sorted(_OWN_FIELDS & set(record.data))}")
    fields = {"kind": record.kind, "writer": record.writer, "seq": record.seq, "at": round(record.at, 6), **record.data}
    body = json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def decode(line: bytes) -> Record | None:
    """The record of one line (with or without its newline), or None when the line is damaged."""
    body = line[HEADER:].rstrip(b"\n")
    try:
        if int(line[:8], 16) != len(body) or int(line[9:17], 16) != zlib.crc32(body):
            return None
        fields = json.loads(body)
        return Record(fields.pop("kind"), fields.pop("writer"), fields.pop("seq"), fields.pop("at"), fields)
    except (ValueError, KeyError, AttributeError, TypeError):
        return None


def read_frames(content: bytes, *, skip: Iterable[str] = ()) -> tuple[list[Record], int, int]:
    """All records of a piece of a journal file.

    Args:
        skip: kinds to pass over without parsing them, twenty times as fast; they are not checked for damage.

    Returns:
        (records, end, num_damaged): `end` is the offset behind the last whole record; what follows is a torn tail
        or a record still being written. Damaged lines before `end` are counted.
    """
    prefixes = tuple(f'{{"kind":"{kind}",'.encode("ascii") for kind in skip)
    records: list[Record] = []
    end = position = num_damaged = num_pending = 0
    while True:
        newline = content.find(b"\n", position)
        if newline < 0:
            return records, end, num_damaged
        if prefixes and content.startswith(prefixes, position + HEADER):
            num_damaged, num_pending, end = num_damaged + num_pending, 0, newline + 1
            position = end
            continue
        record = decode(content[position:newline])
        position = newline + 1
        if record is None:
            num_pending += 1
            continue
        records.append(record)
        num_damaged, num_pending, end = num_damaged + num_pending, 0, position
