"""Slurm's words about its jobs: the listing we ask for, the marks we look for in it, what each state means to us."""

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
"""Format of squeue (squeue(1), --format): fields between control characters, which no name or comment can forge.

A comment may hold a line feed, a bar or a blank; Slurm accepts none of these two characters on a command line of ours.
"""

LISTING_OF_ALL = ("squeue", "--noheader", "--array", "--states=all", "--format=" + LISTING)
"""The question itself: array tasks apart, with jobs that ended as long as the controller remembers them."""

_COLUMNS = ("JobIDRaw", "JobName", "State", "ExitCode", "Submit", "Start", "NodeList")
ACCOUNTED = ("sacct", "-X", "-D", "-n", "-P", "--format=" + ",".join(_COLUMNS))
"""The question to accounting: a row for each submission of an id, those that came before it was given again too."""

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
"""States in which a job is over; source: squeue(1), JOB STATE CODES. What FAILED means stands in its reason."""

_SIGNALLED = re.compile(r"(?:exit code )?0:([1-9]\d*)")
"""An exit code of Slurm's whose second part is the signal that ended the batch script; source: sacct(1), ExitCode."""

_ITSELF = re.compile(r"NonZeroExitCode|(?:exit code )?[1-9]\d*:\d+")
"""Slurm's reason, or exit code, of a batch script that ended by itself."""

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
    Cause.OK: "it ended by itself",
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
    """How Slurm says that a job ended."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class SlurmJob:
    """A line of Slurm's listing: one job, or one task of a job array.

    Attributes:
        id: as `scancel` takes it, `12` or `12_3`.
        start: when it started; of a waiting job when Slurm expects that. Empty: it does not say.
        mark: ours in its comment; empty: it is none of ours.
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
        """Whether no process of it is left, nor will be."""
        return self.state in _ENDS

    @property
    def is_waiting(self) -> bool:
        """Whether it has not started, or waits to be started again."""
        return self.state in _WAITING

    @property
    def was_refused(self) -> bool:
        """Whether it is only Slurm's note of a submission that it turned down."""
        return self.is_over and not self.nodes and self.state == "FAILED"

    def how_ended(self, *, has_begun: bool) -> JobEnd | None:
        """How it ended; None while it has not. See `cause_of_end`."""
        return cause_of_end(self.state, self.reason, has_begun=has_begun) if self.is_over else None

    @property
    def started_at(self) -> float:
        """When it started, since 1970; 0: Slurm does not say."""
        return time_of(self.start)


@dataclass(frozen=True)
class AccountedJob:
    """A submission of a job as accounting remembers it; of an id that was given again there are several."""

    id: str
    name: str
    state: str
    code: str
    submitted: str
    start: str
    nodes: str


def time_of(said: str) -> float:
    """A time of Slurm's, in seconds since 1970; 0: it says none. One without a zone is of this machine."""
    from datetime import datetime  # lazy: it takes 2 ms, and few ask

    try:
        return float(said) if said.isdigit() else datetime.fromisoformat(said).timestamp()
    except ValueError:
        return 0.0


def mark_of(token: str) -> str:
    """The public name of a job in the scheduler, from its secret token."""
    import hashlib  # lazy: OpenSSL takes 4 ms

    return hashlib.sha256(b"windlass mark " + token.encode()).hexdigest()[:_MARK_DIGITS]


def comment_of(mark: str, link: object) -> str:
    """What a link carries as its comment."""
    return f"{_PREFIX}{mark}.{link}"


def program_path(folder: str, name: str) -> str:
    """How one of Slurm's programs is called; folder: of all of them, empty where they are on the PATH."""
    return f"{folder.rstrip('/')}/{name}" if folder else name


def read_listing(text: str) -> list[SlurmJob]:
    """The jobs in an answer of squeue to `LISTING`; what is no line of it (a warning, a banner) is passed over."""
    found = []
    for piece in text.split("\x1e")[1:]:
        fields = piece.rstrip("\n").split("\x1f")
        if len(fields) == _NUM_FIELDS:
            number, state, reason, start, end, nodes, name, comment = (_said(field) for field in fields)
            mark, link = read_comment(comment)
            found.append(SlurmJob(number, state, reason, start, end, nodes, name, mark, link))
    return found


def read_accounted(text: str) -> list[AccountedJob]:
    """The rows in an answer of sacct to `ACCOUNTED`; what is none of them is passed over."""
    rows = [line.split("|") for line in text.splitlines()]
    return [AccountedJob(*row) for row in rows if len(row) == len(_COLUMNS)]


def cause_of_end(state: str, reason: str = "", *, has_begun: bool = False) -> JobEnd | None:
    """What a final state means, `CANCELLED by 0` included; None for a state that is not final.

    Args:
        reason: Slurm's reason, or for FAILED its exit code as sacct says it, `3:0`.
        has_begun: whether a supervisor of ours ran in it. Slurm calls it JobLaunchFailure, too, when a signal ends a
            batch script that runs (22.05, `job_complete` of slurmctld/job_mgr.c). Its supervisors say how their work
            ended before the script can fail, so where this is asked they could not.
    """
    word = state.partition(" ")[0].rstrip("+")
    if word not in _ENDS:
        return None
    cause = _FAILED_BY.get(reason, Cause.UNKNOWN) if word == "FAILED" else _ENDS[word]
    if has_begun and word == "FAILED" and (reason == "JobLaunchFailure" or _SIGNALLED.fullmatch(reason)):
        cause = Cause.KILLED
    if has_begun and word == "FAILED" and _ITSELF.fullmatch(reason):
        return JobEnd(Cause.KILLED, f"its supervisors were killed (Slurm: {word}, {reason})")
    said = f"{word}, {reason}" if reason not in ("", "None") else word
    return JobEnd(cause, f"{_WORDS.get(cause, 'its batch script failed')} (Slurm: {said})")


def _said(field: str) -> str:
    return "" if field in ("(null)", "N/A", "Unknown", "None") else field


def read_comment(comment: str) -> tuple[str, int]:
    """Mark and link number in a job's comment; ("", 0): it has none of ours."""
    match = _COMMENT.search(comment)
    return (match.group(1), int(match.group(2))) if match else ("", 0)
