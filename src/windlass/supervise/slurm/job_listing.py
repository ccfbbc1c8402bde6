"""Slurm's listings of jobs: how to request and parse them, and the meaning of each job state."""

from __future__ import annotations

import re

from windlass.core.dataclass import dataclass
from windlass.record.causes import Cause

__all__ = [
    "ACCOUNTED",
    "LISTING",
    "LISTING_OF_ALL",
    "AccountedJob",
    "JobEnd",
    "SlurmJob",
    "cause_of_end",
    "comment_of",
    "mark_of",
    "program_path",
    "read_accounted",
    "read_comment",
    "read_listing",
    "time_of",
]

LISTING = "\x1e%i\x1f%T\x1f%r\x1f%S\x1f%e\x1f%N\x1f%j\x1f%k"
"""Format of squeue (squeue(1), --format): fields between control characters, which names and comments cannot contain.

A comment may contain a line feed, a bar or a blank, but Slurm rejects these two control characters in a command line.
"""

LISTING_OF_ALL = ("squeue", "--noheader", "--array", "--states=all", "--format=" + LISTING)
"""Command of the listing: array tasks separately, ended jobs included while the controller remembers them."""

_COLUMNS = ("JobIDRaw", "JobName", "State", "ExitCode", "Submit", "Start", "NodeList")
ACCOUNTED = ("sacct", "-X", "-D", "-n", "-P", "--format=" + ",".join(_COLUMNS))
"""Command for accounting: a row for each submission of an id, including those before the id was reused."""

_PREFIX = "windlass:"
_MARK_DIGITS = 20
_COMMENT = re.compile(rf"{_PREFIX}([0-9a-f]{{{_MARK_DIGITS}}})\.([0-9]{{1,6}})\b")
_NUM_FIELDS = LISTING.count("%")

_ENDS = {
    "COMPLETED": Cause.OK,
    "CANCELLED": Cause.CANCELLED,
    "TIMEOUT": Cause.WALLTIME,
    "DEADLINE": Cause.TIMEOUT,
    "PREEMPTED": Cause.PREEMPTED,
    "NODE_FAIL": Cause.NODE_LOST,
    "BOOT_FAIL": Cause.NODE_UNHEALTHY,
    "LAUNCH_FAILED": Cause.NODE_UNHEALTHY,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "FAILED": Cause.UNKNOWN,
    "REVOKED": Cause.UNKNOWN,
}
"""States in which a job is over; source: squeue(1), JOB STATE CODES. FAILED depends on the reason."""

_SIGNALLED = re.compile(r"(?:exit code )?0:([1-9]\d*)")
"""Slurm's exit code whose second part is the signal that ended the batch script; source: sacct(1), ExitCode."""

_ITSELF = re.compile(r"NonZeroExitCode|(?:exit code )?[1-9]\d*:\d+")
"""Slurm's reason, or exit code, for a batch script that exited by itself."""

_FAILED_BY = {
    "BadConstraints": Cause.UNSCHEDULABLE,
    "InvalidAccount": Cause.UNSCHEDULABLE,
    "InvalidQOS": Cause.UNSCHEDULABLE,
    "JobLaunchFailure": Cause.NODE_UNHEALTHY,
    "SystemFailure": Cause.NODE_UNHEALTHY,
    "TimeLimit": Cause.WALLTIME,
    "NodeDown": Cause.NODE_LOST,
    "OutOfMemory": Cause.OUT_OF_MEMORY,
}
_WORDS = {
    Cause.OK: "it exited by itself",
    Cause.CANCELLED: "it was cancelled in Slurm",
    Cause.WALLTIME: "its walltime was over",
    Cause.TIMEOUT: "its deadline in Slurm was over",
    Cause.PREEMPTED: "Slurm took its nodes for another job",
    Cause.NODE_LOST: "Slurm lost a node of it",
    Cause.NODE_UNHEALTHY: "Slurm could not start it on its nodes",
    Cause.OUT_OF_MEMORY: "it used more memory than it had asked for",
    Cause.UNSCHEDULABLE: "Slurm says that no node can run it",
    Cause.KILLED: "its batch script was killed",
}
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")


@dataclass(frozen=True)
class JobEnd:
    """End of a job according to Slurm."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class SlurmJob:
    """Job in squeue's output, or one task of a job array.

    Attributes:
        id: id as for `scancel`, `12` or `12_3`.
        start: start time; for a waiting job, the expected one; empty if unknown.
        mark: windlass's mark in its comment; empty if it is not a windlass job.
        link: number of the link, from its comment; 0 without one.
    """

    id: str
    state: str
    reason: str = ""
    start: str = ""
    end: str = ""
    nodes: str = ""
    name: str = ""
    mark: str = ""
    link: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether no process of the job is left."""
        return self.state in _ENDS

    @property
    def is_waiting(self) -> bool:
        """Return whether the job has not started, or waits for a restart."""
        return self.state in _WAITING

    @property
    def was_refused(self) -> bool:
        """Return whether this is only Slurm's record of a rejected submission."""
        return self.is_over and not self.nodes and self.state == "FAILED"

    def how_ended(self, *, has_begun: bool) -> JobEnd | None:
        """Return how the job ended; None if it has not. See `cause_of_end`."""
        return cause_of_end(self.state, self.reason, has_begun=has_begun) if self.is_over else None

    @property
    def started_at(self) -> float:
        """Return the start time, in seconds since 1970; 0 if unknown."""
        return time_of(self.start)


@dataclass(frozen=True)
class AccountedJob:
    """Submission of a job, as accounting recorded it; an id that was reused has several."""

    id: str
    name: str
    state: str
    code: str
    submitted: str
    start: str
    nodes: str


def time_of(text: str) -> float:
    """Convert Slurm's time to seconds since 1970; 0 if there is none. Without a zone, this machine's applies."""
    from datetime import datetime  # lazy: 2 ms, and rarely needed

    try:
        return float(text) if text.isdigit() else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def mark_of(token: str) -> str:
    """Derive the mark that identifies a job publicly in the scheduler from the job's secret token."""
    import hashlib  # lazy: OpenSSL takes 4 ms

    return hashlib.sha256(b"windlass mark " + token.encode()).hexdigest()[:_MARK_DIGITS]


def comment_of(mark: str, link: object) -> str:
    """Return the comment with which a link's job is submitted."""
    return f"{_PREFIX}{mark}.{link}"


def program_path(folder: str, name: str) -> str:
    """Return the path of a Slurm program; if `folder` is empty, its name, to be found on the PATH."""
    return f"{folder.rstrip('/')}/{name}" if folder else name


def read_listing(text: str) -> list[SlurmJob]:
    """Parse squeue's output for `LISTING`; other lines (a warning, a banner) are ignored."""
    found = []
    for piece in text.split("\x1e")[1:]:
        fields = piece.rstrip("\n").split("\x1f")
        if len(fields) == _NUM_FIELDS:
            number, state, reason, start, end, nodes, name, comment = (_field(field) for field in fields)
            mark, link = read_comment(comment)
            found.append(SlurmJob(number, state, reason, start, end, nodes, name, mark, link))
    return found


def read_accounted(text: str) -> list[AccountedJob]:
    """Parse sacct's output for `ACCOUNTED`; other lines are ignored."""
    rows = [line.split("|") for line in text.splitlines()]
    return [AccountedJob(*row) for row in rows if len(row) == len(_COLUMNS)]


def cause_of_end(state: str, reason: str = "", *, has_begun: bool = False) -> JobEnd | None:
    """Return what a final state means, `CANCELLED by 0` included; None for other states.

    Args:
        reason: Slurm's reason, or for FAILED its exit code in sacct's format, `3:0`.
        has_begun: whether a supervisor ran in it. Slurm also reports JobLaunchFailure when a signal ends a running batch
            script (22.05, `job_complete` of slurmctld/job_mgr.c). Supervisors record how their work ended before the
            script can fail; if this function is called, they could not.
    """
    word = state.partition(" ")[0].rstrip("+")
    if word not in _ENDS:
        return None
    cause = _FAILED_BY.get(reason, Cause.UNKNOWN) if word == "FAILED" else _ENDS[word]
    if has_begun and word == "FAILED" and (reason == "JobLaunchFailure" or _SIGNALLED.fullmatch(reason)):
        cause = Cause.KILLED
    if has_begun and word == "FAILED" and _ITSELF.fullmatch(reason):
        return JobEnd(Cause.KILLED, f"its supervisors were killed (Slurm: {word}, {reason})")
    detail = f"{word}, {reason}" if reason not in ("", "None") else word
    return JobEnd(cause, f"{_WORDS.get(cause, 'its batch script failed')} (Slurm: {detail})")


def _field(field: str) -> str:
    return "" if field in ("(null)", "N/A", "Unknown", "None") else field


def read_comment(comment: str) -> tuple[str, int]:
    """Return the mark and link number in a job's comment; ("", 0): not a windlass job."""
    match = _COMMENT.search(comment)
    return (match.group(1), int(match.group(2))) if match else ("", 0)
