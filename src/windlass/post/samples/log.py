"""Log of a run's samples: what was planned, scored, reserved for a step, dropped and committed.

A reservation is on disk before its step uses it, so a learner that resumes at an earlier step gets the same batches
again. The files are described in `sample_reader`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.files import take_lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.post.control.scoring import ScoredSample
from windlass.post.samples.frames import FrameHeader, LogEntry, encode_frame, read_headers, record_of
from windlass.post.samples.reader import SampleFolder
from windlass.post.samples.records import CommitStep, PlanGroup, Record, ReserveBatch, Scored

__all__ = ["SampleLog"]

_LOCK = "writer.lock"
_LOCK_WAIT_S, _LOCK_PAUSE_S = 5.0, 0.05
_SEGMENT_BYTES = 64 << 20


class SampleLog:
    """Writer of the log; continues it at a step, or begins it anew there.

    Args:
        step: number of finished steps of the learner.
        since: step of the first batch that may be read; None: `step`.
        facts: everything that determines the samples and what is learned of them, JSON-safe; stored for readers too. What
            was reserved for `step` and later ones under other facts no longer counts.
        is_fresh: begin anew, whatever the facts.
        decode: returns the text of a prompt, which is stored for readers.
        segment_bytes: size at which a segment is full.

    Raises:
        PreconditionError: another process writes the log (`in-use`), the folder is not writable (`not-writable`), or
            a segment is damaged (`samples-damaged`).
    """

    def __init__(
        self,
        path: Path,
        *,
        step: int = 0,
        since: int | None = None,
        facts: Mapping[str, object] | None = None,
        is_fresh: bool = False,
        decode: Callable[[Sequence[int]], str] | None = None,
        segment_bytes: int | None = None,
    ) -> None:
        self._folder, self._segment_bytes = SampleFolder(path), segment_bytes or _SEGMENT_BYTES
        self._facts = decode_json(json.dumps(facts or {}))
        self._decode = decode
        self._entries: list[LogEntry] = []
        self._descriptors: list[int] = []
        self._number, self._end, self._synced = -1, 0, 0
        self.close = weakref.finalize(self, _close_all, self._descriptors)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock(path / _LOCK)
            self._open(step, step if since is None else min(step, since), is_fresh=is_fresh)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _not_writable(path, error) from error
            raise

    @property
    def steps(self) -> Mapping[int, Sequence[int]]:
        """Return the groups of every reserved step that may still be wanted."""
        return {step: found.groups for step, found in sorted(self._index.steps.items())}

    @property
    def next_group(self) -> int:
        """Return the number above all groups that were ever planned, also those that are no longer recorded."""
        return self._index.next_group

    def finished(self) -> Iterator[ScoredSample]:
        """Yield the samples of groups that no step has reserved."""
        for group, found in sorted(self._index.open.items()):
            yield from (each.scored for each in self._folder.samples([group], found.places))

    def append(self, *entries: LogEntry) -> None:
        """Collect entries, which the next `write` or `flush` writes."""
        self._entries += entries

    def write(self) -> None:
        """Write the collected entries, so that they survive the end of this process.

        Raises:
            PreconditionError: the disk is full or the write failed (`not-writable`); nothing was written.
        """
        if not self._entries:
            return
        try:
            if self._end >= self._segment_bytes:
                self._sync()
                self._begin(max(self._index.steps, default=self._step - 1) + 1, is_anew=False)
            facts = {"at": round(time.time(), 3), "synced": self._synced}
            content, header = encode_frame(self._entries, decode=self._decode, **facts)
            self._write(content)
        except OSError as error:
            raise _not_writable(self._folder.file(self._number), error) from error
        self._index.add(header, (self._number, self._end))
        self._index.dropped.clear()
        self._end += len(content)
        self._entries = []

    def flush(self) -> None:
        """Write the collected entries, so that they survive a power cut too.

        Raises:
            PreconditionError: as `write`.
        """
        self.write()
        try:
            self._sync()
        except OSError as error:
            raise _not_writable(self._folder.file(self._number), error) from error

    def stored(self, step: int) -> list[ScoredSample] | None:
        """Return the samples that a step reserved, in the order of groups and members; None if it has not."""
        found = self._index.steps.get(step)
        return None if found is None else [each.scored for each in self._folder.samples(found.groups, found.places)]

    def visits(self, step: int) -> Sequence[tuple[int, Sequence[float | None]]]:
        """Return the visits of prompts that were dropped before a step reserved its groups."""
        found = self._index.steps.get(step)
        return () if found is None else found.visits

    def records(self) -> Iterator[Record]:
        """Yield the records that still count.

        Plans and scores in their order, then reservations, then groups that were dropped since the last one.
        """
        steps = self._index.steps
        live = {group for step in steps.values() for group in step.groups} | self._index.open.keys()
        places = {place for step in steps.values() for place in step.places}
        places |= {place for group in self._index.open.values() for place in group.places}
        for place in sorted(places):
            for record in map(record_of, read_headers(self._folder.frame(place))[0][0][1]["rows"]):
                is_plan = isinstance(record, PlanGroup) and record.group in live
                if is_plan or (isinstance(record, Scored) and record.id.group in live):
                    assert record is not None
                    yield record
        for number, step in sorted(steps.items()):
            yield ReserveBatch(step=number, groups=tuple(step.groups))
        yield from filter(None, map(record_of, self._index.new_drops))

    def commit(self, step: int, *, oldest_step: int | None = None) -> None:
        """Record that a checkpoint after `step` steps is on disk; earlier steps are no longer kept in memory.

        Args:
            oldest_step: delete segments that nothing needs that resumes at this step or a later one.

        Raises:
            PreconditionError: as `write`.
        """
        self.append(CommitStep(step=step))
        self.flush()
        self._index.steps = {number: found for number, found in self._index.steps.items() if number >= step}
        if oldest_step is not None:
            needed = self._folder.needed(min(step, oldest_step))
            for number in self._folder.numbers():
                if number < needed:
                    self._folder.file(number).unlink()

    def _lock(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._descriptors.append(descriptor)
        for _ in range(int(_LOCK_WAIT_S / _LOCK_PAUSE_S)):
            with contextlib.suppress(BlockingIOError):
                take_lock(descriptor, path)
                return
            time.sleep(_LOCK_PAUSE_S)
        message = f"another process writes the samples in {path.parent}"
        raise PreconditionError(message, hint="stop it, or set another `checkpoint.folder`", code="in-use")

    def _open(self, step: int, since: int, *, is_fresh: bool) -> None:
        numbers = self._folder.numbers()
        self._step = step
        self._index, end = self._folder.index(self._folder.needed(since))
        if numbers:
            self._number = numbers[-1]
            newest = self._folder.first(self._number)
            if not is_fresh and newest["facts"] == self._facts and newest["begins_at"] <= step:
                self._begins_at = newest["begins_at"]
                self._use(end)
                os.ftruncate(self._file, end)
                self._sync()
                return
        self._begins_at = step
        self._begin(step, is_anew=True)

    def _begin(self, step: int, *, is_anew: bool) -> None:
        """Begin the next segment."""
        number = self._number + 1
        needs = [place[0] for group in self._index.open.values() for place in group.places[:1]]
        header: FrameHeader = {
            "step": step,
            "begins_at": self._begins_at,
            "is_anew": is_anew,
            "needs": number if is_anew else min([number, *needs]),
            "facts": self._facts,
            "synced": 0,
            "next_group": 0 if is_anew else self._index.next_group,
        }
        content, header = encode_frame([], **header)
        write_atomic(self._folder.file(number), content)
        self._number = number
        self._use(len(content))
        self._synced = self._end
        self._index.add(header, (number, 0))

    def _use(self, end: int) -> None:
        """Append to the newest segment from now on."""
        self._file = os.open(self._folder.file(self._number), os.O_RDWR | os.O_CLOEXEC)
        self._descriptors.append(self._file)
        for descriptor in self._descriptors[1:-1]:
            os.close(descriptor)
        del self._descriptors[1:-1]
        self._end = end

    def _write(self, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                num_written = os.pwrite(self._file, view, self._end + len(content) - len(view))
                if num_written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                view = view[num_written:]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise

    def _sync(self) -> None:
        if self._synced < self._end:
            os.fdatasync(self._file)
            self._synced = self._end


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _not_writable(path: Path, error: OSError) -> PreconditionError:
    message = f"cannot write {path}: {error.strerror or error}"
    hint = "free some space and run the same command again: it resumes where it stopped"
    return PreconditionError(message, hint=hint, code="not-writable")
