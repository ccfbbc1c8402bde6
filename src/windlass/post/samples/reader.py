"""Samples of a run as its log stores them: where they are, and what they are. Only reads, also beside the writer.

    FOLDER/writer.lock       held by the process that writes
    FOLDER/000000.samples    a segment: frames of `sample_frames`, only appended to; the first one states where it begins
    FOLDER/000001.samples    the next one, begun when a segment is full or when the run begins anew at a step

Only the tail of the newest segment can be torn; other damage is an error.
"""

from __future__ import annotations

import contextlib
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from windlass.core.errors import NotFoundError, PreconditionError, Problem, SpecError
from windlass.post.control.prompts import Visit
from windlass.post.control.scoring import ScoredSample
from windlass.post.samples.frames import FrameHeader, StoredSample, read_headers, samples_of, whole_frame_after
from windlass.record.frames import HEADER

__all__ = ["FOLDER", "SampleFolder", "SampleIndex", "SampleReplay", "find_samples", "read_samples"]

FOLDER = "samples"
"""Name of the log's folder in a run's folder of checkpoints."""

SUFFIX = ".samples"
_SEGMENT = re.compile(r"[0-9]{6,}\.samples")
_HEAD = re.compile(rb"[0-9a-f]{8} [0-9a-f]{8} ")

Place: TypeAlias = tuple[int, int]
"""Segment and offset of a frame."""


def read_samples(folder: str | Path, *, step: int | None = None, group: int | None = None) -> Iterator[StoredSample]:
    """Yield the samples of a run by step, group and member, then those of no step. Only reads, also beside a writer.

    Args:
        folder: the run's folder of checkpoints, or its folder `samples`.

    Raises:
        NotFoundError: the folder has no samples (`no-samples`).
        PreconditionError: a segment is damaged (`samples-damaged`).
    """
    log = SampleFolder(find_samples(folder))
    index, _ = log.index()
    parts: list[tuple[int | None, str, Sequence[int], Sequence[Place]]] = [
        (number, "", found.groups, found.places) for number, found in sorted(index.steps.items())
    ]
    rest = [*index.open.items(), *index.dropped.items()]
    parts += [(None, found.reason, (number,), found.places) for number, found in sorted(rest, key=lambda item: item[0])]
    for number, reason, groups, places in parts:
        wanted = [each for each in groups if group is None or each == group]
        if (step is not None and number != step) or not wanted:
            continue
        with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
            for each in log.samples(wanted, places):
                yield replace(each, step=number, dropped=reason)


class SampleReplay:
    """Batches of another run, in the order of its steps.

    Args:
        facts: what the samples must have in common with this run, by name.
        factors: factor of each verifier's value in the reward; rewards are computed again from the stored values.
        steps_per_batch: optimiser steps of this run that use a batch.

    Raises:
        NotFoundError: the folder has no samples (`no-samples`).
        SpecError: the samples do not fit (`samples-mismatch`).
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        facts: Mapping[str, object],
        factors: Mapping[str, float],
        steps_per_batch: int = 1,
    ) -> None:
        self._steps_per_batch = steps_per_batch
        self._folder, self._factors = SampleFolder(find_samples(folder)), dict(factors)
        stored = [self._folder.first(number)["facts"] for number in self._folder.numbers()]
        problems = [
            Problem(f"rollout.replay: {folder} has another {name}: {value}, not {wanted}", "samples-mismatch")
            for name, wanted in facts.items()
            for value in dict.fromkeys(str(each.get(name)) for each in stored)
            if value != str(wanted)
        ]
        problems += [
            Problem(f"rollout.replay: {folder} has no values of the verifier `{name}`", "samples-mismatch")
            for name in factors
            if any(name not in each.get("verifiers", ()) for each in stored)
        ]
        if problems:
            raise SpecError(problems)
        self._steps = sorted(self._folder.index()[0].steps.items())

    def begin(self, step: int) -> None:
        """Do nothing: stored samples need no weights."""

    def batch(self, step: int) -> list[ScoredSample] | None:
        """Return the samples of the batch of a step of this run; None after the last one."""
        number = step // self._steps_per_batch
        if number >= len(self._steps):
            return None
        _, found = self._steps[number]
        samples = [each.scored for each in self._folder.samples(found.groups, found.places)]
        return [replace(each, reward=self._reward(each)) for each in samples]

    @property
    def has_log(self) -> bool:
        """Return true: batches are stored."""
        return True

    def stored(self, step: int) -> list[ScoredSample] | None:
        """Return the samples of the batch of a step of this run."""
        return self.batch(step)

    def dropped(self) -> Sequence[Visit]:
        """Return nothing: stored samples were chosen before."""
        return ()

    def waits_for(self) -> str:
        """Return nothing: stored samples are never late."""
        return ""

    def commit(self, step: int, *, oldest_step: int | None) -> None:
        """Do nothing: this run stores no samples."""

    def metrics(self) -> dict[str, float]:
        """Return nothing: nothing is generated."""
        return {}

    def close(self) -> None:
        """Do nothing: files are opened for each batch."""

    def _reward(self, scored: ScoredSample) -> float:
        values = [(factor, scored.rewards[name]) for name, factor in self._factors.items()]
        return float(sum(float("nan") if value is None else factor * value for factor, value in values))


def find_samples(folder: str | Path) -> Path:
    """Return the folder of samples in a run's folder of checkpoints, or the folder itself.

    Raises:
        NotFoundError: there is none (`no-samples`).
    """
    for found in (Path(folder), Path(folder) / FOLDER):
        if SampleFolder(found).numbers():
            return found
    hint = "name the `checkpoint.folder` of a run of `windlass train grpo`"
    raise NotFoundError(f"no samples in {folder}", hint=hint, code="no-samples")


@dataclass(slots=True)
class OpenGroup:
    """A group that no step has reserved: its frames."""

    places: list[Place]
    reason: str = ""


@dataclass(slots=True)
class StepGroups:
    """Groups that a step reserved, and the frames that hold them."""

    groups: array[int]
    places: tuple[Place, ...]
    visits: Sequence[Visit]


class SampleIndex:
    """Places of samples: those of open groups, of dropped ones, and of steps.

    Attributes:
        next_group: number above all groups that were ever planned.
        new_drops: rows of groups that were dropped since the last reservation.
    """

    def __init__(self) -> None:
        self.open: dict[int, OpenGroup] = {}
        self.dropped: dict[int, OpenGroup] = {}
        self.steps: dict[int, StepGroups] = {}
        self.next_group = 0
        self.new_drops: list[list[Any]] = []

    def add(self, header: FrameHeader, place: Place) -> None:
        """Take a frame into account."""
        if header.get("is_anew"):
            self.open.clear()
            self.steps = {step: found for step, found in self.steps.items() if step < header["begins_at"]}
            self.next_group = 0
            self.new_drops = []
        self.next_group = max(self.next_group, header.get("next_group", 0))
        for row in header["rows"]:
            if row[0] in ("plan", "sample"):
                self.next_group = max(self.next_group, row[1] + 1)
                places = self.open.setdefault(row[1], OpenGroup([])).places
                if place not in places[-1:]:
                    places.append(place)
            elif row[0] == "reserve":
                self.new_drops = []
                found = [self.open.pop(group, None) for group in row[2]]
                whole = [group for group in found if group is not None]
                if len(whole) == len(found):  # else its first segment was deleted
                    places = sorted({place for group in whole for place in group.places})
                    self.steps[row[1]] = StepGroups(array("q", row[2]), tuple(places), row[3])
            elif row[0] == "drop":
                self.new_drops.append(row)
                dropped = self.dropped[row[1]] = self.open.pop(row[1], OpenGroup([]))
                dropped.reason = row[2]


class SampleFolder:
    """Segments of a log, for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def numbers(self) -> list[int]:
        """Return the numbers of the segments, in order."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(int(name[: -len(SUFFIX)]) for name in os.listdir(self.path) if _SEGMENT.fullmatch(name))
        return []

    def file(self, number: int) -> Path:
        """Return the file of a segment."""
        return self.path / f"{number:06d}{SUFFIX}"

    def first(self, number: int) -> FrameHeader:
        """Return the header of a segment's first frame, which was written as a whole."""
        found, _ = read_headers(self.frame((number, 0)))
        if not found:
            raise _damaged(self.file(number), 0)
        return found[0][1]

    def needed(self, step: int) -> int:
        """Return the number of the first segment that is needed to continue at a step."""
        numbers = self.numbers()
        for number in reversed(numbers):
            header = self.first(number)
            if header["step"] <= step:
                return max(int(header["needs"]), numbers[0])
        return numbers[0] if numbers else 0

    def index(self, first: int = 0) -> tuple[SampleIndex, int]:
        """Return where all samples are, and the end of the last whole frame in the newest segment.

        Raises:
            PreconditionError: a segment is damaged before its tail (`samples-damaged`).
        """
        index, end = SampleIndex(), 0
        numbers = [number for number in self.numbers() if number >= first]
        for number in numbers:
            try:
                content = self.file(number).read_bytes()
            except FileNotFoundError:  # deleted since it was listed
                continue
            headers, end = read_headers(content)
            later = whole_frame_after(content, end) if end < len(content) else None
            is_tail = number == numbers[-1] and headers and (later is None or later["synced"] <= end)
            if end < len(content) and not is_tail:
                raise _damaged(self.file(number), end)
            for offset, header in headers:
                index.add(header, (number, offset))
        return index, end

    def samples(self, groups: Sequence[int], places: Sequence[Place]) -> list[StoredSample]:
        """Return the samples of some groups in some frames, in the order of groups and members."""
        order = {group: place for place, group in enumerate(groups)}
        found = {
            (order[each.scored.sample.id.group], each.scored.sample.id.member): each
            for place in places
            for each in samples_of(self.frame(place))
            if each.scored.sample.id.group in order
        }
        return [found[at] for at in sorted(found)]

    def frame(self, place: Place) -> bytes:
        """Return the bytes of a frame; empty if there is none."""
        with self.file(place[0]).open("rb") as file:
            file.seek(place[1])
            head = file.read(HEADER)
            return head + file.read(int(head[:8], 16) + 1) if _HEAD.fullmatch(head) else b""


def _damaged(path: Path, offset: int) -> PreconditionError:
    message = f"{path} is damaged at byte {offset}"
    hint = "restore the file from a copy, or remove the folder: the samples in it are then generated again"
    return PreconditionError(message, hint=hint, code="samples-damaged")
