"""Heartbeat process: a child of the fencing agent that accesses the shared file system and may hang there."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Callable, Protocol

from windlass.core.files import refresh_folder
from windlass.supervise.fencing.fence import heartbeat_path
from windlass.supervise.fencing.shared_memory import since_boot
from windlass.supervise.gang.election import job_number, other_jobs, read_claims

__all__ = ["Heartbeat", "HeartbeatProcess", "unpack_heartbeats"]

_BEAT = struct.Struct("<dB")
_FRESH_AFTER_TURNS = 3


def unpack_heartbeats(raw: bytes) -> list[tuple[float, bool]]:
    """Decode heartbeats: for each, its start time, and whether another start of the job had taken over."""
    whole = raw[: len(raw) - len(raw) % _BEAT.size]
    return [(began, bool(flag)) for began, flag in _BEAT.iter_unpack(whole)]


class HeartbeatDisk(Protocol):
    """Operations of a replica's heartbeat on the shared file system."""

    def write(self) -> bool:
        """Write the heartbeat; return whether it reached the server. Blocks as long as the file system does."""

    def refresh(self) -> None:
        """Invalidate cached listings. Raises OSError."""

    def is_superseded(self) -> bool:
        """Return whether another start of the job took over. Raises OSError, ValueError or TypeError."""


class Heartbeat:
    """Heartbeat of one replica: writes it, and reports each success to the fencing agent.

    Args:
        report: called with the start of the turn, and whether another start of the job took over.
    """

    def __init__(self, disk: HeartbeatDisk, renew_s: float, report: Callable[[float, bool], None]) -> None:
        self._disk, self._renew_s, self._report = disk, renew_s, report
        self._reported_at = float("-inf")

    def turn(self, began: float) -> None:
        """Write one heartbeat and report it; a failure is not reported. Blocks as long as the file system does."""
        is_written = self._disk.write()
        try:
            if began > self._reported_at + _FRESH_AFTER_TURNS * self._renew_s:
                self._disk.refresh()
            is_superseded = self._disk.is_superseded()
        except (OSError, ValueError, TypeError):  # an unreadable claim may be one that takes over
            return
        if is_written or is_superseded:
            self._report(began, is_superseded)
            self._reported_at = began


class HeartbeatProcess:
    """Process that writes a replica's heartbeat, checks claims, and reports each success to the agent.

    Args:
        job_folder: folder of the claims; heartbeats are in the folder of this start of the job.
        incarnation: name of this start; empty if a job starts only once.
        out: pipe to the fencing agent.
    """

    def __init__(self, job_folder: Path, rank: int, incarnation: str, renew_s: float, out: int) -> None:
        self._renew_s = renew_s
        self.files = HeartbeatFiles(job_folder, rank, incarnation)
        self._heartbeat = Heartbeat(self.files, renew_s, lambda *turn: _report(out, *turn))

    def run(self) -> None:
        """Write heartbeats forever; raises BrokenPipeError when the fencing agent is gone."""
        while True:
            began = since_boot()
            self.turn(began)
            time.sleep(max(0.0, began + self._renew_s - since_boot()))

    def turn(self, began: float) -> None:
        """See `Heartbeat.turn`."""
        self._heartbeat.turn(began)


def _report(out: int, began: float, is_superseded: bool) -> None:
    os.write(out, _BEAT.pack(began, is_superseded))


class HeartbeatFiles:
    """The job's files that one replica's heartbeat uses; see `HeartbeatDisk`."""

    def __init__(self, job_folder: Path, rank: int, incarnation: str) -> None:
        self._folder, self._incarnation = job_folder, incarnation
        place = job_folder / incarnation if incarnation else job_folder
        self._path = heartbeat_path(place, rank)
        self._probe = f".probe-{job_number(job_folder)}-{incarnation}-{rank}"
        self.counter = time.time_ns()  # increases over restarts, so that each heartbeat differs from the one before

    def is_superseded(self) -> bool:
        """See `HeartbeatDisk.is_superseded`."""
        return read_claims(self._folder, self._incarnation).is_superseded

    def write(self) -> bool:
        """Write the heartbeat to the server; the file is opened by name each time, so that other machines see it."""
        self.counter += 1
        try:
            descriptor = os.open(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(descriptor, b"%020d\n" % self.counter, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return False
        return True

    def refresh(self) -> None:
        """After a silence, invalidate cached listings of the job and of later jobs of its task."""
        refresh_folder(self._folder, self._probe)
        own = job_number(self._folder) if self._incarnation else 0
        if own:
            refresh_folder(self._folder.parent, self._probe)
            for number, later in other_jobs(self._folder).items():
                if number > own:
                    refresh_folder(later, self._probe)
