"""Logs of an experiment's replicas and attempts: printed as they arrive, or saved to files and extended later."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Protocol

from windlass.backends.beaker.logs import advanced
from windlass.backends.beaker.render import beaker_name
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.values import BeakerJob, BeakerLogLine
from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError, WindlassError
from windlass.core.files import write_atomic
from windlass.core.json_text import read_json

__all__ = ["PATIENCE_S", "Away", "BeakerLogFile", "Tail", "follow_all", "keep_all", "log_name"]

_LOOK_S = 2.0
_MAX_TASK = 100
_NOTE_EVERY = 200
PATIENCE_S = 600.0
"""Longest outage of Beaker before following stops; the experiment continues to run."""

Told = Callable[[BeakerJob, BeakerLogLine], None]


def log_name(job: BeakerJob) -> str:
    """Return the name of a job's log: the task (its id if it has no name), the rank and the attempt."""
    task = beaker_name(job.task or f"task-{job.task_id}", _MAX_TASK)
    return f"{task}-{job.rank}.{job.attempt}.log"


def follow_all(
    service: BeakerService,
    experiment: str,
    told: Told,
    *,
    ranks: Collection[int] = (),
    follow: bool = False,
    start: Callable[[BeakerJob], tuple[int, int]] = lambda job: (0, 0),
    look_s: float = _LOOK_S,
) -> None:
    """Pass the lines of all jobs to `told`; with `follow`, also of later attempts, until the experiment ends.

    Args:
        told: called from one thread, with each job's lines in order.
        ranks: only these replicas; empty for all.
        start: position in a job's log to begin at: a time, and how many lines of that time were already read.
        look_s: seconds between two checks for new jobs.
    """
    if not follow:
        for job in _chosen(service.jobs(experiment, ranks=ranks)):
            for line in Tail(service, job.id, start(job)).read():
                told(job, line)
        return
    _Following(service, experiment, told, ranks, start, look_s).run()


def keep_all(
    service: BeakerService,
    experiment: str,
    folder: Path,
    *,
    ranks: Collection[int] = (),
    follow: bool = False,
    told: Told = lambda job, line: None,
) -> tuple[Path, ...]:
    """Save the logs of all jobs in a folder, one file each; a later call appends only new lines.

    Args:
        ranks: only these replicas; empty for all.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, BeakerLogFile] = {}

    def position(job: BeakerJob) -> tuple[int, int]:
        files[job.id] = BeakerLogFile(folder / log_name(job))
        return files[job.id].position

    def keep(job: BeakerJob, line: BeakerLogLine) -> None:
        files[job.id].add(line)
        told(job, line)

    try:
        follow_all(service, experiment, keep, ranks=ranks, follow=follow, start=position)
    finally:
        for file in files.values():
            file.close()
    return tuple(file.path for file in files.values())


class BeakerLogFile:
    """Log file, with the position reached in the job's log recorded in `.NAME.position` beside it.

    Lines after the last recorded position (the machine crashed) are cut off and fetched again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path.with_name(f".{path.name}.position")
        self._at_ns, self._num_at, size = self._read()
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(size)
        self._file.seek(size)
        self._num_unnoted = 0

    @property
    def position(self) -> tuple[int, int]:
        """Return the last line's time, and how many lines with that time were read."""
        return self._at_ns, self._num_at

    def add(self, line: BeakerLogLine) -> None:
        """Write a line."""
        self._file.write(line.message if line.message.endswith(b"\n") else line.message + b"\n")
        self._at_ns, self._num_at = advanced(self.position, line)
        self._num_unnoted += 1
        if self._num_unnoted >= _NOTE_EVERY:
            self._note_position()

    def close(self) -> None:
        """Write the buffered lines and the position."""
        self._note_position()
        self._file.close()

    def _note_position(self) -> None:
        self._file.flush()
        said = {"at_ns": self._at_ns, "num_at": self._num_at, "size": self._file.tell()}
        write_atomic(self._note, json.dumps(said).encode(), is_durable=False)
        self._num_unnoted = 0

    def _read(self) -> tuple[int, int, int]:
        try:
            said = read_json(self._note)
            known = int(said["at_ns"]), int(said["num_at"]), int(said["size"])
            return known if self.path.stat().st_size >= known[2] else (0, 0, 0)
        except (OSError, ValueError, KeyError, TypeError):
            return 0, 0, 0


class _Logs(Protocol):
    """Part of `BeakerService` that `Tail` needs."""

    def logs(self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0) -> Iterator[BeakerLogLine]:
        """Yield the lines of a job's log."""
        ...


@dataclass(slots=True)
class Tail:
    """Reader that remembers its position in a job's log: the next read continues there, without gaps or repeated lines.

    Attributes:
        position: the last line's time, and how many lines with that time were read.
    """

    service: _Logs
    job: str
    position: tuple[int, int] = (0, 0)

    def read(self, *, follow: bool = False) -> Iterator[BeakerLogLine]:
        """Yield the new lines; with `follow`, until the job ends or the connection is lost."""
        since_ns, num_known = self.position
        for line in self.service.logs(self.job, follow=follow, since_ns=since_ns, num_known=num_known):
            self.position = advanced(self.position, line)
            yield line


@dataclass(slots=True)
class Away:
    """Timer for an outage of Beaker; a short outage does not end following."""

    patience_s: float
    since: float | None = None
    now: Callable[[], float] = time.monotonic

    def note(self, error: UnreachableError) -> None:
        """Record an error; raise it if the outage is too long."""
        moment = self.now()
        self.since = moment if self.since is None else self.since
        if moment - self.since > self.patience_s:
            raise error


class _Following:
    """Reader of the logs of all jobs of an experiment at once, each in a daemon thread."""

    def __init__(
        self,
        service: BeakerService,
        experiment: str,
        told: Told,
        ranks: Collection[int],
        start: Callable[[BeakerJob], tuple[int, int]],
        look_s: float,
    ) -> None:
        self._service = service
        self._experiment = experiment
        self._told = told
        self._ranks = ranks
        self._start = start
        self._look_s = look_s
        self._news: queue.SimpleQueue[tuple[BeakerJob, BeakerLogLine | WindlassError | None]] = queue.SimpleQueue()
        self._away = Away(PATIENCE_S)
        self._known: set[str] = set()
        self._num_open = 0

    def run(self) -> None:
        """Run until the experiment has ended and every log is read; raises what a reader raised."""
        is_over = False
        while not is_over or self._num_open:
            if not is_over:
                is_over = self._look()
            self._hand_over()

    def _look(self) -> bool:
        """Start readers for the logs of new jobs; return whether no more jobs can appear."""
        try:
            is_over = self._service.get(self._experiment).is_over
            jobs = self._service.jobs(self._experiment, ranks=self._ranks)
        except UnreachableError as error:
            self._away.note(error)
            return False
        self._away.since = None
        for job in _chosen(jobs):
            if job.id not in self._known:
                self._known.add(job.id)
                self._num_open += 1
                arguments = (job, Tail(self._service, job.id, self._start(job)))
                threading.Thread(target=self._read, args=arguments, name=f"log of {job.id}", daemon=True).start()
        return is_over

    def _read(self, job: BeakerJob, tail: Tail) -> None:
        away = Away(self._away.patience_s)
        while True:
            try:
                for line in tail.read(follow=True):
                    away.since = None
                    self._news.put((job, line))
                self._news.put((job, None))
                return
            except UnreachableError as error:
                try:
                    away.note(error)
                except UnreachableError:
                    self._news.put((job, error))
                    return
                time.sleep(self._look_s)
            except WindlassError as error:
                self._news.put((job, error))
                return

    def _hand_over(self) -> None:
        """Pass received lines on until it is time to check for new jobs again."""
        ends_at = time.monotonic() + self._look_s
        while True:
            try:
                job, news = self._news.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                return
            if isinstance(news, WindlassError):
                raise news
            if news is None:
                self._num_open -= 1
                if not self._num_open:
                    return
            else:
                self._told(job, news)


def _chosen(jobs: Collection[BeakerJob]) -> Iterator[BeakerJob]:
    """Yield the jobs that may have new output."""
    return (job for job in jobs if job.scheduled_ns or job.is_over)
