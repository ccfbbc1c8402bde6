"""The logs of every replica and attempt of an experiment: printed as they come, or kept in files that go on later."""

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
"""Beaker may be away so long before following ends; the experiment runs on."""

Told = Callable[[BeakerJob, BeakerLogLine], None]


def log_name(job: BeakerJob) -> str:
    """The name of a job's log: task, rank and attempt, the numbers that people know; a task without a name has its id."""
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
    """Hand over the lines of all jobs; following, jobs of later attempts as well, until the experiment is over.

    Args:
        told: called in one thread, with lines of one job in order.
        ranks: only these replicas; empty: all.
        start: where to begin in a job's log: moment, and how many lines of that moment are known.
        look_s: between two looks for jobs that are new.
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
    """Keep the logs of all jobs in a folder, a file each; a later call adds what came since, nothing twice.

    Args:
        ranks: only these replicas; empty: all.

    Returns:
        The files.
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
    """A log on disk that knows how far it is; beside it `.NAME.position` says so.

    What was written behind the last note of the position (the machine died) is cut off and fetched again.
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
        """The last line's moment, and how many lines of that moment are there."""
        return self._at_ns, self._num_at

    def add(self, line: BeakerLogLine) -> None:
        """Write a line."""
        self._file.write(line.message if line.message.endswith(b"\n") else line.message + b"\n")
        self._at_ns, self._num_at = advanced(self.position, line)
        self._num_unnoted += 1
        if self._num_unnoted >= _NOTE_EVERY:
            self._note_position()

    def close(self) -> None:
        """Write what is left, and the position."""
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
    """Part of `BeakerService` that a tail needs."""

    def logs(self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0) -> Iterator[BeakerLogLine]:
        """Lines of a job."""
        ...


@dataclass(slots=True)
class Tail:
    """Position in a job's log: the next read continues there, without a gap and without repeating a line.

    Attributes:
        position: the last line's moment, and how many lines of that moment were read.
    """

    service: _Logs
    job: str
    position: tuple[int, int] = (0, 0)

    def read(self, *, follow: bool = False) -> Iterator[BeakerLogLine]:
        """The lines that are new; following, until the job is over or its connection is cut."""
        since_ns, num_known = self.position
        for line in self.service.logs(self.job, follow=follow, since_ns=since_ns, num_known=num_known):
            self.position = advanced(self.position, line)
            yield line


@dataclass(slots=True)
class Away:
    """Clock of an outage of Beaker; someone who follows a log need not hear of a short one."""

    patience_s: float
    since: float | None = None
    now: Callable[[], float] = time.monotonic

    def note(self, error: UnreachableError) -> None:
        """Remember; raises the error when it has been too long."""
        moment = self.now()
        self.since = moment if self.since is None else self.since
        if moment - self.since > self.patience_s:
            raise error


class _Following:
    """Reads all jobs of an experiment at once, each in a thread that ends with the process."""

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
        """Until the experiment is over and every log has been read; raises what a reader raised."""
        is_over = False
        while not is_over or self._num_open:
            if not is_over:
                is_over = self._look()
            self._hand_over()

    def _look(self) -> bool:
        """Begin to read jobs that are new; returns whether no more come."""
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
        """Hand over what has arrived, until it is time to look again."""
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
    """Jobs that may have printed something."""
    return (job for job in jobs if job.scheduled_ns or job.is_over)
