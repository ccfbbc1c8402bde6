"""Format of records in a file: each is a line, `LLLLLLLL CCCCCCCC {json}` and a newline.

L is the length and C the crc32 of the JSON bytes, both in eight hex digits. A line that does not match them
is damaged: at the end of a file it is a torn write, elsewhere it is skipped and counted. The same frames
are used in files and, without shared storage, on standard output.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from itertools import chain
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json

__all__ = ["Record", "decode", "encode", "frame", "read_frames"]

HEADER = 18
_BATCH = 256
_OWN_FIELDS = frozenset({"kind", "writer", "seq", "at"})
Data = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """Record in a journal: one event.

    Attributes:
        kind: the kind of event, one of those in `windlass.record.events`.
        writer: name of the writer; each writer has its own file.
        seq: number of the record in its writer's file, from 1, without gaps.
        at: wall time in seconds; only displayed, never used in decisions.
        data: the facts, JSON values only.
    """

    kind: str
    writer: str
    seq: int
    at: float
    data: Data


def encode(record: Record) -> bytes:
    """Return the framed line for a record; raises ValueError if a fact has the name of one of `Record`'s fields."""
    if not _OWN_FIELDS.isdisjoint(record.data):
        raise ValueError(f"a {record.kind} record cannot hold facts named {sorted(_OWN_FIELDS & set(record.data))}")
    fields = {"kind": record.kind, "writer": record.writer, "seq": record.seq, "at": round(record.at, 6), **record.data}
    body = json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return frame(body)


def frame(body: bytes) -> bytes:
    """Return the framed line for a record's JSON bytes."""
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def decode(line: bytes) -> Record | None:
    """Decode one line, with or without its newline; return None if it is damaged."""
    body = _body(line)
    return None if body is None else _parse([body])[0]


def _body(line: bytes) -> bytes | None:
    """Return the JSON bytes in a line; None if they do not match its length and checksum."""
    body = line[HEADER:].rstrip(b"\n")
    try:
        is_whole = int(line[:8], 16) == len(body) and int(line[9:17], 16) == zlib.crc32(body)
    except ValueError:
        return None
    return body if is_whole else None


def _bodies_if_all_whole(content: bytes) -> list[bytes] | None:
    """Return the bodies of all lines, in a fifth of the time; None if the lines must be checked one by one."""
    lines = content.split(b"\n")
    del lines[-1]
    num, heads = len(lines), b"".join([line[:HEADER] for line in lines])
    if len(heads) != num * HEADER or heads[8::HEADER] + heads[17::HEADER] != b"  " * num:
        return None
    try:
        told = bytes.fromhex(heads.decode("ascii"))
    except ValueError:
        return None
    bodies = [line[HEADER:] for line in lines]
    found = chain.from_iterable(zip(map(len, bodies), map(zlib.crc32, bodies)))
    return bodies if told == struct.pack(f">{2 * num}I", *found) else None


def _parse(bodies: list[bytes]) -> list[Record | None]:
    """Parse many bodies with one call of the JSON parser, which is twice as fast as a call for each."""
    try:
        found = decode_json(b"[" + b",".join(bodies) + b"]")
        if len(found) == len(bodies):
            return [_record(fields) for fields in found]
        raise ValueError("a body contains more than one value")
    except ValueError:  # intact lines without valid JSON: not written by windlass
        return [_parse([body])[0] for body in bodies] if len(bodies) > 1 else [None]


def _record(fields: Any) -> Record | None:
    try:
        kind, writer, seq, at = fields.pop("kind"), fields.pop("writer"), fields.pop("seq"), fields.pop("at")
    except (KeyError, AttributeError, TypeError):
        return None
    is_whole = isinstance(kind, str) and isinstance(writer, str) and isinstance(seq, int)
    if not is_whole or not isinstance(at, (int, float)):
        return None
    record = object.__new__(Record)  # the `__init__` of a frozen class takes three times as long
    record.__dict__.update(kind=kind, writer=writer, seq=seq, at=at, data=fields)
    return record


def read_frames(content: bytes, *, skip: Iterable[str] = ()) -> tuple[list[Record], int, int]:
    """Decode all records in a piece of a journal file.

    Args:
        skip: kinds to skip without parsing, twenty times as fast; they are not checked for damage.

    Returns:
        (records, end, num_damaged): `end` is the offset after the last complete record; what follows is a torn tail
        or a record still being written. Damaged lines before `end` are counted.
    """
    prefixes = tuple(f'{{"kind":"{kind}",'.encode("ascii") for kind in skip)
    whole = None if prefixes else _bodies_if_all_whole(content)
    bodies: list[bytes] = whole or []
    end = position = num_damaged = num_pending = 0
    if whole is not None:
        end = position = content.rfind(b"\n") + 1
    while True:
        newline = content.find(b"\n", position)
        if newline < 0:
            break
        is_skipped = bool(prefixes) and content.startswith(prefixes, position + HEADER)
        body = None if is_skipped else _body(content[position:newline])
        position = newline + 1
        if body is None and not is_skipped:
            num_pending += 1
            continue
        if body is not None:
            bodies.append(body)
        num_damaged, num_pending, end = num_damaged + num_pending, 0, position
    parsed = [record for first in range(0, len(bodies), _BATCH) for record in _parse(bodies[first : first + _BATCH])]
    records = [record for record in parsed if record is not None]
    return records, end, num_damaged + len(parsed) - len(records)
