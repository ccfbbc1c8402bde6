"""Loop of a follower: read new journal records, write them to the target, save the position.

Before a batch changes any file, a note records its start in the journal and the length of each file. A follower that
finds such a note truncates the files and writes the batch again, so every report is in the files exactly once, even if
the previous follower was killed. A power failure may still lose the last lines; `is_fresh` rewrites everything.
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
from windlass.tune.controller.journal.history import AttemptHistory, History, TrialHistory, TrialReport
from windlass.tune.controller.journal.stream import no_sweep
from windlass.tune.folder import SweepFolder
from windlass.tune.followers.target import FileTarget, FollowedSweep, Target
from windlass.tune.results.rows import ResultRow, make_result

__all__ = ["Feed", "SweepFollower"]


_BATCH_BYTES = 1 << 20
_POLL_S = 0.5
_ORPHAN_S = 30.0
_TAIL_BYTES = 1 << 16


class SweepFollower:
    """Reader that follows one sweep and writes it to one target.

    Args:
        idle_s: seconds without new records and without a head after which it ends; a later head starts another.
        is_fresh: discard earlier output and start again.
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
        """Stop once everything now in the journal has been written. Safe in a signal handler."""
        self._stops = True

    def run(self, *, follows: bool = True) -> None:
        """Follow the sweep until it ends or loses its head. Blocks.

        Without `follows`, only write what is in the journal now.

        Raises:
            NotFoundError: the folder holds no sweep (`sweep-not-found`).
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

    # ------------------------------------------------------------------------------------------------- position

    def _take_lock(self) -> None:
        """Wait for the lock, which another follower for the same target may be about to release."""
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
        """Return whether the journal still matches the note, since a power failure can lose records already read."""
        return self._check_at(int(note["position"])) == note.get("check")

    def _check_at(self, position: int) -> int:
        """Return a checksum of the bytes before a position, or -1 if the journal is shorter."""
        begin = max(0, position - _TAIL_BYTES)
        with open(self.folder.head_journal, "rb") as file:
            file.seek(begin)
            content = file.read(position - begin)
        return zlib.crc32(content) if len(content) == position - begin else -1

    def _cut_back(self, sizes: dict[str, int]) -> bool:
        """Undo an unfinished batch; return False if a file has lost data from earlier batches."""
        for name, size in sizes.items():
            path = self.folder.path / name
            found = path.stat().st_size if path.exists() else 0
            if found < size:
                return False
            if found > size:
                os.truncate(path, size)
        return True

    # ---------------------------------------------------------------------------------------------------- batches

    def _take_batch(self) -> bool:
        """Pass the next records to the target; return False if there are none."""
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
        """Return complete records, each with the offset of its end, and the offset at which the last one ends."""
        with open(self.folder.head_journal, "rb") as file:
            file.seek(self._position)
            content = file.read(_BATCH_BYTES)
            if b"\n" not in content:  # a record that is longer than a batch, or still being written
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
        """Return whether the sweep has a head.

        The lock is tested only if the head is on a different machine.
        """
        try:
            head = read_json(self.folder.head_note)
        except (FileNotFoundError, ValueError):
            head = {}
        if head.get("host") == os.uname().nodename:
            return Path(f"/proc/{head.get('pid')}").exists()
        return is_locked(self.folder.head_journal)


class Feed:
    """Reader of all records, which passes new ones to a target.

    Attributes:
        history: the sweep so far, without reports.
    """

    def __init__(self, folder: SweepFolder, target: Target) -> None:
        self.history = History(keeps_reports=False)
        self._folder = folder
        self._target = target
        self._is_open = False
        self._num_reports: dict[str, int] = {}
        self._newest_s: dict[str, tuple[int, float]] = {}
        self._restored_s: dict[str, float] = {}
        self._saved_s: dict[tuple[str, int], float] = {}

    def take(self, record: Record, *, is_new: bool) -> None:
        """Add a record.

        A record that is not new only updates the state, and is not passed on.
        """
        touched = self._touched(record)
        before = {trial.id: (trial.status.is_over, trial.tag) for trial in touched}
        self.history.add(record)
        if not self._is_open and self.history.name:
            name = str(self.history.trainable.get("type", ""))
            self._target.open(FollowedSweep(name=self.history.name, folder=self._folder, trainable=name))
            self._is_open = True
        trial = self.history.trials.get(str(record.data.get("trial")))
        if trial is not None:
            self._tell(record, trial, is_new=is_new)
        for other in touched if is_new else ():
            was_over, tag = before[other.id]
            if other.tag != tag:
                self._target.configured(other)
            if other.status.is_over and not was_over:
                self._target.ended(other, is_failed=other.status == "ERROR")

    def _touched(self, record: Record) -> list[TrialHistory]:
        names = [record.data.get("trial"), *(act.get("trial") for act in record.data.get("acts") or ())]
        return [self.history.trials[name] for name in dict.fromkeys(names) if name in self.history.trials]

    def _tell(self, record: Record, trial: TrialHistory, *, is_new: bool) -> None:
        if record.kind == records.TRIAL_CHOSEN:
            restore = trial.attempts[-1].restore
            self._restored_s[trial.id] = self._saved_s.get((restore.trial, restore.iteration), 0.0) if restore else 0.0
        elif record.kind == records.TRIAL_STARTED and is_new:
            self._target.started(trial)
        elif record.kind == records.TRIAL_REPORTED:
            self._report(record, trial, is_new=is_new)
        elif record.kind == records.TRIAL_SAVED:
            last = trial.last or {}
            self._note_saved(trial, record.data["iteration"], last.get("time_total_s") or 0.0)
            if is_new:
                self._target.saved(trial, record.data["path"])

    def _report(self, record: Record, trial: TrialHistory, *, is_new: bool) -> None:
        report = TrialReport(record.at, record.data["attempt"], record.data["metrics"], record.data.get("saved", ""))
        number = self._num_reports[trial.id] = self._num_reports.get(trial.id, 0) + 1
        total = float(report.metrics.get("time_total_s") or 0.0)
        restored_s = self._restored_s.get(trial.id, 0.0)
        attempt, before_s = self._newest_s.get(trial.id, (0, 0.0))
        before_s = before_s if attempt == report.attempt else restored_s
        self._newest_s[trial.id] = (report.attempt, total)
        if report.saved:
            self._note_saved(trial, report.iteration, total)
        if not is_new:
            return
        started = next((one for one in reversed(trial.attempts) if one.number == report.attempt), _NO_ATTEMPT)
        self._target.reported(
            trial, make_result(trial, ResultRow(report, started, before_s, restored_s)), number, record.at
        )
        if report.saved:
            self._target.saved(trial, report.saved)

    def _note_saved(self, trial: TrialHistory, iteration: int, total_s: float) -> None:
        self._saved_s[trial.id, iteration] = total_s


_NO_ATTEMPT = AttemptHistory(number=0, chosen_at=0.0)
