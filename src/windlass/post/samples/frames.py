"""Frames of a sample log: a header in JSON, then all tokens and log-probabilities as arrays.

A frame is `windlass.record.frames.frame` of these bytes: the length of the header in eight hex digits, the header, int32
token ids of prompts and answers end to end, and log-probabilities as float32, or as float64 where float32 would change
one. The first sample of a group in a frame has its prompt with it. Arrays contain newlines, so frames are read by length.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from windlass.core.json_text import decode_json
from windlass.post.control.scoring import ScoredSample
from windlass.post.rollout.types import Sample, SampleId, TokenSpan
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, Record, ReserveBatch, Scored, oldest_version
from windlass.post.workers.messages import episode_data, read_episode
from windlass.record.frames import HEADER, frame

__all__ = [
    "FrameHeader",
    "LogEntry",
    "StoredSample",
    "encode_frame",
    "read_headers",
    "record_of",
    "samples_of",
    "whole_frame_after",
]

_FRAME_START = re.compile(rb"\n[0-9a-f]{8} [0-9a-f]{8} ")

LogEntry: TypeAlias = PlanGroup | ScoredSample | ReserveBatch | DropGroup | CommitStep
"""Entry of a log: a record, with the sample itself in place of `Scored`."""

Row: TypeAlias = list[Any]
FrameHeader: TypeAlias = dict[str, Any]
"""JSON of a frame: `rows`, each a list that begins with its kind, and how the arrays are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSample:
    """A sample as a log stores it.

    Attributes:
        prompt: text of the prompt.
        stored_at: wall time in seconds at which it was stored.
        step: the step that reserved it, from 0; None if none did.
        dropped: why no step learns from it; empty if one does or may.
    """

    scored: ScoredSample
    prompt: str
    stored_at: float
    step: int | None = None
    dropped: str = ""


def encode_frame(
    entries: Sequence[LogEntry], *, decode: Callable[[Sequence[int]], str] | None = None, **facts: object
) -> tuple[bytes, FrameHeader]:
    """Return the frame of some entries, and its header.

    Args:
        decode: returns the text of a prompt; None: prompts are stored without text.
        facts: further entries of the header.
    """
    import numpy as np  # lazy: samples are read without it

    ids: list[int] = []
    logs: list[float] = []
    rows: list[Row] = []
    prompts: set[int] = set()
    for entry in entries:
        if isinstance(entry, ScoredSample):
            sample = entry.sample
            if sample.id.group not in prompts:
                prompts.add(sample.id.group)
                ids.extend(entry.prompt_ids)
                text = "" if decode is None else decode(entry.prompt_ids)
                rows.append(["prompt", sample.id.group, len(entry.prompt_ids), text])
            ids.extend(sample.ids)
            logs.extend(sample.logp)
            logs.extend(sample.raw_logp or ())
            rows.append(_sample_row(entry))
        else:
            rows.append(_row(entry))
    exact = np.frombuffer(struct.pack(f"{len(logs)}d", *logs), dtype=np.float64)
    with np.errstate(over="ignore"):  # then it is not equal
        short = exact.astype(np.float32)
    is_short = bool((short == exact).all())
    header = {**facts, "num_ids": len(ids), "is_float32": is_short, "rows": rows}
    head = json.dumps(header, separators=(",", ":")).encode("ascii")
    body = (head, struct.pack(f"{len(ids)}i", *ids), (short if is_short else exact).tobytes())
    return frame(b"%08x%s%s%s" % (len(head), *body)), header


def _row(entry: PlanGroup | ReserveBatch | DropGroup | CommitStep) -> Row:
    match entry:
        case PlanGroup():
            return ["plan", entry.group, entry.row, entry.oldest_version]
        case ReserveBatch():
            return ["reserve", entry.step, entry.groups, entry.dropped]
        case DropGroup():
            return ["drop", entry.group, entry.reason, entry.length]
        case CommitStep():
            return ["commit", entry.step]


def record_of(row: Row) -> Record | None:
    """Return the record in a row of a header; None for a prompt."""
    match row:
        case ["plan", group, place, oldest]:
            return PlanGroup(group=group, row=place, oldest_version=oldest)
        case ["sample", group, member, attempt, count, _, spans, *_]:
            at = SampleId(group=group, member=member, attempt=attempt)
            oldest = oldest_version(_spans(spans)) if spans else 0
            return Scored(id=at, oldest_version=oldest, length=count)
        case ["reserve", step, groups, dropped]:
            visits = tuple((row, tuple(rewards)) for row, rewards in dropped)
            return ReserveBatch(step=step, groups=tuple(groups), dropped=visits)
        case ["drop", group, reason, length]:
            return DropGroup(group=group, reason=reason, length=length)
        case ["commit", step]:
            return CommitStep(step=step)
    return None


def _sample_row(entry: ScoredSample) -> Row:
    sample, at = entry.sample, entry.sample.id
    return [
        "sample",
        at.group,
        at.member,
        at.attempt,
        len(sample.ids),
        sample.raw_logp is not None,
        [[span.start, span.stop, span.version, span.origin, span.oldest_read] for span in sample.spans],
        sample.finish,
        entry.text,
        dict(entry.rewards),
        None if entry.reward != entry.reward else entry.reward,
        dict(sample.seconds),
        episode_data(sample),
    ]


def read_headers(content: bytes) -> tuple[list[tuple[int, FrameHeader]], int]:
    """Return the whole frames at the start of a file, each as (offset, header), and the offset after the last one."""
    found: list[tuple[int, FrameHeader]] = []
    offset = 0
    while (length := _frame_length(content, offset)) is not None:
        found.append((offset, _header(content, offset)[0]))
        offset += length
    return found, offset


def whole_frame_after(content: bytes, offset: int) -> FrameHeader | None:
    """Return the header of the last whole frame that begins after an offset; for a file that is damaged there."""
    starts = [match.start() + 1 for match in _FRAME_START.finditer(content, offset)]
    whole = [start for start in starts if _frame_length(content, start) is not None]
    return _header(content, whole[-1])[0] if whole else None


def samples_of(content: bytes) -> Iterator[StoredSample]:
    """Yield the samples of a whole frame."""
    header, start = _header(content, 0)
    ids, logs = array("i"), array("f" if header["is_float32"] else "d")
    ids.frombytes(content[start : start + 4 * header["num_ids"]])
    logs.frombytes(content[start + 4 * header["num_ids"] : -1])
    id_at = log_at = 0
    prompts: dict[int, tuple[tuple[int, ...], str]] = {}
    for row in header["rows"]:
        if row[0] == "prompt":
            prompts[row[1]] = tuple(ids[id_at : id_at + row[2]]), row[3]
            id_at += row[2]
        elif row[0] == "sample":
            count, streams = row[4], []
            for _ in range(1 + row[5]):
                streams.append(tuple(logs[log_at : log_at + count]))
                log_at += count
            prompt_ids, prompt = prompts[row[1]]
            scored = _scored(row, prompt_ids, tuple(ids[id_at : id_at + count]), streams)
            yield StoredSample(scored=scored, prompt=prompt, stored_at=header["at"])
            id_at += count


def _scored(
    row: Row, prompt_ids: tuple[int, ...], ids: tuple[int, ...], streams: Sequence[tuple[float, ...]]
) -> ScoredSample:
    _, group, member, attempt, _, has_raw, spans, finish, text, rewards, reward, seconds, episode = row
    return ScoredSample(
        sample=Sample(
            id=SampleId(group=group, member=member, attempt=attempt),
            ids=ids,
            logp=streams[0],
            raw_logp=streams[1] if has_raw else None,
            spans=tuple(_spans(spans)),
            finish=finish,
            seconds=seconds,
            episode=read_episode(episode),
        ),
        prompt_ids=prompt_ids,
        text=text,
        rewards=rewards,
        reward=float("nan") if reward is None else reward,
    )


def _spans(rows: Sequence[Row]) -> Iterator[TokenSpan]:
    for start, stop, version, origin, oldest in rows:
        yield TokenSpan(start=start, stop=stop, version=version, origin=origin, oldest_read=oldest)


def _frame_length(content: bytes, offset: int) -> int | None:
    """Return the length of the frame at an offset; None if there is no whole one."""
    head = content[offset : offset + HEADER]
    try:
        length, checksum = int(head[:8], 16), int(head[9:17], 16)
    except ValueError:
        return None
    end = offset + HEADER + length
    is_whole = len(head) == HEADER and content[end : end + 1] == b"\n"
    return end + 1 - offset if is_whole and zlib.crc32(memoryview(content)[offset + HEADER : end]) == checksum else None


def _header(content: bytes, offset: int) -> tuple[FrameHeader, int]:
    """Return the header of the whole frame at an offset, and where its arrays begin."""
    begin = offset + HEADER + 8
    end = begin + int(content[begin - 8 : begin], 16)
    return decode_json(content[begin:end], max_bytes=end), end
