"""The loop of a follower: read what is new in the journal, write it to the target, remember how far it came.

Before a batch touches any file, a note says where in the journal it begins and how long each file is. A follower that
finds such a note cuts the files back and writes the batch again, so every report is in the files exactly once, wherever
the one before was killed. A power cut may still lose the last lines; `is_fresh` writes everything anew.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from windlass.core.clock import Clock, SystemClock
from windlass.core.files import is_locked, take_lock, write_atomic
from windlass.core.json_text import read_json
from windlass.record.frames import Record, decode
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.stream import no_sweep
from windlass.tune.folder import SweepFolder
from windlass.tune.followers.feed import Feed
from windlass.tune.followers.target import FileTarget, Target

__all__ = ["SweepFollower"]

_BATCH_BYTES = 1 << 20
_POLL_S = 0.5
_ORPHAN_S = 30.0
_TAIL_BYTES = 1 << 16


class SweepFollower:
    """Follows one sweep for one target.

    Args:
        idle_s: seconds without news and without a living head after which it ends; a later head starts another one.
        is_fresh: forget what was written before.
    """

    def __init__(
        self,
        folder: Path | str,
        target: Target,
        *,
        clock: Clock | None = None,
        idle_s: float = _ORPHAN_S,
        is_fresh: bool = False,
    ) -> None:
        self.folder = SweepFolder(Path(folder))
        self.target = target
        self._clock = clock or SystemClock()
        self._idle_s = idle_s
        self._is_fresh = is_fresh
        self._note = self.folder.followers / f"{target.name}.json"
        self._lock = -1
        self._position = 0
        self._told_to = 0
        self._feed = Feed(self.folder, target)
        self._is_over = False
        self._stops = False

    def stop(self) -> None:
        """End when everything that is there now is written. Safe in a signal handler."""
        self._stops = True

    def run(self, *, follows: bool = True) -> None:
        """Follow until the sweep ends, or nobody goes on with it; blocks. Without `follows`: what is there now.

        Raises:
            NotFoundError: there is no sweep (`no-such-sweep`).
            WindlassError: the target cannot be used.
        """
        if not self.folder.head_journal.exists():
            raise no_sweep(self.folder)
        self._take_lock()
        try:
            self._resume()
            quiet_since = self._clock.monotonic()
            while True:
                if self._take_batch():
                    quiet_since = self._clock.monotonic()
                    continue
                if not follows or self._is_over or self._stops:
                    return
                if self._clock.monotonic() - quiet_since > self._idle_s and not self._has_head():
                    return
                self._clock.sleep(_POLL_S)
        finally:
            self.target.close(is_over=self._is_over)
            os.close(self._lock)

    # ------------------------------------------------------------------------------------------------- where it was

    def _take_lock(self) -> None:
        """Wait in line: a follower of the same target that is about to end gives way."""
        self.folder.followers.mkdir(parents=True, exist_ok=True)
        path = self._note.with_suffix(".lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        while True:
            try:
                take_lock(self._lock, path)
                return
            except BlockingIOError:
                self._clock.sleep(_POLL_S)

    def _resume(self) -> None:
        note = {} if self._is_fresh else self._read_note()
        sizes: dict[str, int] = note.get("sizes", {})
        if note and self._fits(note) and self._cut_back(sizes):
            self._told_to = int(note["position"])
        elif isinstance(self.target, FileTarget):
            for pattern in self.target.patterns:
                for path in self.folder.path.glob(pattern):
                    path.unlink()

    def _read_note(self) -> dict[str, Any]:
        try:
            found = read_json(self._note)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _fits(self, note: dict[str, Any]) -> bool:
        """Whether the journal still is what the note speaks of: a power cut can take back what was read."""
        return self._check_at(int(note["position"])) == note.get("check")

    def _check_at(self, position: int) -> int:
        """A checksum of the bytes before a position; -1 when the journal is shorter."""
        begin = max(0, position - _TAIL_BYTES)
        with open(self.folder.head_journal, "rb") as file:
            file.seek(begin)
            content = file.read(position - begin)
        return zlib.crc32(content) if len(content) == position - begin else -1

    def _cut_back(self, sizes: dict[str, int]) -> bool:
        """Undo a batch that was begun; False when a file lost what earlier batches wrote."""
        for name, size in sizes.items():
            path = self.folder.path / name
            found = path.stat().st_size if path.exists() else 0
            if found < size:
                return False
            if found > size:
                os.truncate(path, size)
        return True

    # ---------------------------------------------------------------------------------------------------- its batches

    def _take_batch(self) -> bool:
        """Tell the target of the next records; False when there are none."""
        begin = self._position
        found, end = self._read()
        if not found:
            return False
        for place, record in found:
            self._feed.take(record, is_new=place > self._told_to)
            if record.kind == records.SWEEP_ENDED:
                self._is_over = True
            elif record.kind in (records.SWEEP_OPENED, records.SWEEP_REQUESTED):
                self._is_over = False
        self._position = end
        if end > self._told_to:
            self._deliver(max(begin, self._told_to))
            self._told_to = end
        return True

    def _read(self) -> tuple[list[tuple[int, Record]], int]:
        """Whole records from here on, each with the offset behind it, and the offset behind the last."""
        with open(self.folder.head_journal, "rb") as file:
            file.seek(self._position)
            content = file.read(_BATCH_BYTES)
            if b"\n" not in content:  # a record longer than a batch, or one that is being written
                content += file.read()
        found, end, place = [], self._position, self._position
        for line in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]:
            place += len(line) + 1
            record = decode(line)
            if record is not None:
                found.append((place, record))
                end = place
        return found, end

    def _deliver(self, begin: int) -> None:
        if isinstance(self.target, FileTarget):
            pieces = self.target.take_pieces()
            paths = {name: self.folder.path / name for name in pieces.appended}
            sizes = {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}
            self._write_note(begin, sizes)
            for name, content in pieces.replaced.items():
                path = self.folder.path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, content, is_durable=False)
            for name, parts in pieces.appended.items():
                self._append(paths[name], b"".join(parts))
        self.target.flush()
        self._write_note(self._position, {})

    @staticmethod
    def _append(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(content)

    def _write_note(self, position: int, sizes: dict[str, int]) -> None:
        note = {"position": position, "check": self._check_at(position), "sizes": sizes}
        write_atomic(self._note, json.dumps(note).encode(), is_durable=False)

    def _has_head(self) -> bool:
        """Whether somebody writes the journal; asks for its lock only where the head is no process of this machine."""
        try:
            head = read_json(self.folder.head_note)
        except (FileNotFoundError, ValueError):
            head = {}
        if head.get("host") == os.uname().nodename:
            return Path(f"/proc/{head.get('pid')}").exists()
        return is_locked(self.folder.head_journal)
