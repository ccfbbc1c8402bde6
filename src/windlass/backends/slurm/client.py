"""Client for Slurm's programs at one site, which run in the site's shell; their output is parsed into values."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.backends.slurm.errors import refusal, unreachable
from windlass.backends.slurm.version import OLDEST, SlurmVersion
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.sites.profile import Profile
from windlass.supervise.job import QueueRequest
from windlass.supervise.slurm.cancels import cancelled_by
from windlass.supervise.slurm.job_listing import (
    ACCOUNTED,
    LISTING_OF_ALL,
    JobEnd,
    SlurmJob,
    cause_of_end,
    program_path,
    read_accounted,
    read_listing,
    time_of,
)

__all__ = ["Past", "SlurmClient", "completion_file", "read_completions", "read_past"]

_TIMEOUT_S = 60.0
_QUESTION_S = 20.0
_CONNECT_S = 10.0
_SHORTEST_S = 0.5
_CANNOT_RUN = 127
_PAST_COLUMNS = ("JobID", "JobName", "State", "ExitCode", "NodeList")
_PAST_SINCE = "now-60days"
_ID = re.compile(r"[0-9]{1,20}")
_NO_NODES = "None assigned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Accounting record of a job; for a failed one, `reason` is its exit code in words."""

    id: str
    name: str
    state: str
    reason: str
    nodes: str

    def how_ended(self, *, has_begun: bool) -> JobEnd | None:
        """Return how the job ended; None if it has not ended. See `cause_of_end`."""
        return cause_of_end(self.state, self.reason, has_begun=has_begun)

    @property
    def has_run(self) -> bool:
        """Return True if the job ever had a node; a job that ended without one was rejected."""
        return bool(self.nodes)


class SlurmClient:
    """Slurm's commands at one site; each call runs one command, and raises UnreachableError without a response.

    Args:
        patience_s: total time limit of queries about jobs, from the first one on; a site over ssh has some
            seconds more for its connection. None limits each query to `_QUESTION_S`.
    """

    def __init__(self, profile: Profile, shell: SiteShell, *, patience_s: float | None = None) -> None:
        self.profile, self.shell = profile, shell
        self._patience_s = patience_s if patience_s is None or shell.is_local else patience_s + _CONNECT_S
        self._answer_by: float | None = None
        self._version = SlurmVersion.parse(profile.scheduler.version)
        self._user = ""
        self._completions: str | None = None

    @property
    def version(self) -> SlurmVersion:
        """Return the Slurm version in the profile; if the profile has none, query it once."""
        if self._version is None:
            self._version = SlurmVersion.parse(self._run("sbatch", "--version").out) or OLDEST
        return self._version

    def jobs(self, name: str = "") -> list[SlurmJob]:
        """Return the user's jobs that the controller knows, including recently ended ones.

        With `name`, only jobs with that name are returned.
        """
        program, *options = LISTING_OF_ALL
        whose = "--me" if self.version.has_me else f"--user={self._who()}"
        argv = (program, *options, whose, *([f"--name={name}"] if name else []))
        return read_listing(self._run(*argv, timeout_s=self._left_s(_QUESTION_S)).out)

    def past(self, names: Sequence[str]) -> list[Past]:
        """Return the accounting records of jobs with these names; without accounting, completion file records."""
        if not names:
            return []
        if not self.profile.scheduler.accounting:
            return self._completed(names)
        options = ["-X", "-n", "-P", "--name=" + ",".join(names), f"--starttime={_PAST_SINCE}"]
        argv = ("sacct", *options, "--format=" + ",".join(_PAST_COLUMNS))
        return read_past(self._run(*argv, timeout_s=self._left_s(_TIMEOUT_S)).out)

    def submit(
        self,
        argv: Sequence[str],
        queue: QueueRequest,
        num_nodes: int = 1,
        *,
        script: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Queue a job; return its id.

        Args:
            queue, num_nodes: the request, for messages.
            script: the batch script, if the command line names none.
            env: variables for sbatch in addition to those that the site shell passes on.

        Raises:
            UnreachableError: it may or may not be in the queue.
            PreconditionError: the job was rejected.
        """
        answer = self.shell.run(argv, stdin=script, timeout_s=_TIMEOUT_S, env=env)
        number = answer.out.strip().partition(";")[0].rpartition("\n")[2]
        if answer.code or not _ID.fullmatch(number):
            raise refusal(answer, queue, num_nodes, self.profile)
        return number

    def cancel(self, ids: Sequence[str], signal: str = "") -> None:
        """Cancel windlass's jobs; a job that has already ended is not an error.

        Args:
            signal: `KILL` to kill all processes of the job without notice.
        """
        options = [f"--signal={signal}", "--full"] if signal else []
        self._run("scancel", "--quiet", *options, *ids, may_fail=True)

    def reasons(self, nodes: str) -> list[str]:
        """Return why nodes are out of service, in the words of Slurm or an administrator; other nodes are omitted."""
        argv = ("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%E")
        lines = self._run(*argv, timeout_s=self._left_s(_QUESTION_S)).out.splitlines()
        return sorted({line.strip() for line in lines} - {"", "none"})

    def cancelled_by(self, job_id: str, name: str) -> int | None:
        """Return the id of the user who cancelled a job, or NOBODY; None if there is no accounting record.

        Args:
            name: the job's name; a controller that lost its state may have used its id for other jobs.
        """
        if not self.profile.scheduler.accounting:
            return None
        answer = self._run(*ACCOUNTED, f"--jobs={job_id}")
        ours = [row for row in read_accounted(answer.out) if row.name == name]
        newest = max(ours, key=lambda row: time_of(row.submitted), default=None)
        return cancelled_by([newest.state] if newest is not None else [])

    def release(self, ids: Sequence[str]) -> None:
        """Release jobs that windlass holds; a job that has ended is not an error."""
        self._run("scontrol", "release", *ids, may_fail=True)

    def check_guard(self) -> None:
        """Run the site's own check before submissions; raises PreconditionError if it fails."""
        guard = self.profile.scheduler.submit_guard
        if not guard:
            return
        answer = self.shell.run(guard, timeout_s=_TIMEOUT_S)
        if answer.code:
            said = " ".join((answer.err or answer.out).split()) or f"exit code {answer.code}"
            raise PreconditionError(
                f"`{' '.join(guard)}` of site {self.profile.name} rejected the job: {said}",
                hint="follow its message, or change `scheduler.submit_guard` in the profile",
                code="submit-guard-failed",
            )

    def program(self, name: str) -> str:
        """Return the path of one of Slurm's programs at the site."""
        return program_path(self.profile.scheduler.bin, name)

    def _completed(self, names: Sequence[str]) -> list[Past]:
        if self._completions is None:
            answer = self._run("scontrol", "show", "config", timeout_s=self._left_s(_TIMEOUT_S))
            self._completions = completion_file(answer.out)
        if not self._completions:
            return []
        wanted = [word for name in names for word in ("-e", f" Name={name} ")]
        answer = self.shell.run(["grep", "-a", "-F", *wanted, self._completions], timeout_s=_TIMEOUT_S)
        return read_completions(answer.out)

    def _who(self) -> str:
        self._user = self._user or self.shell.run(["id", "-un"], timeout_s=_TIMEOUT_S).out.strip()
        return self._user

    def _left_s(self, most_s: float) -> float:
        """Return the time limit for a call in seconds."""
        if self._patience_s is None:
            return most_s
        now = time.monotonic()
        self._answer_by = self._answer_by or now + self._patience_s
        return max(_SHORTEST_S, min(most_s, self._answer_by - now))

    def _run(self, name: str, *options: str, may_fail: bool = False, timeout_s: float = _TIMEOUT_S) -> ShellResult:
        answer = self.shell.run([self.program(name), *options], timeout_s=timeout_s)
        if answer.code and (not may_fail or answer.code == _CANNOT_RUN):
            raise unreachable(name, answer, self.profile.name)
        return answer


def read_past(text: str) -> list[Past]:
    """Parse sacct's output."""
    rows = [line.split("|") for line in text.splitlines()]
    return [
        Past(
            id=row[0],
            name=row[1],
            state=row[2],
            reason=_exit_of(row[2], row[3]),
            nodes="" if row[4] == _NO_NODES else row[4],
        )
        for row in rows
        if len(row) == len(_PAST_COLUMNS)
    ]


def completion_file(config: str) -> str:
    """Return the path of the job completion file, from `scontrol show config`; empty if there is no text file."""
    said = dict(re.findall(r"^(JobComp(?:Type|Loc))\s*=\s*(\S+)", config, re.MULTILINE))
    return str(said.get("JobCompLoc", "")) if said.get("JobCompType") == "jobcomp/filetxt" else ""


def read_completions(text: str) -> list[Past]:
    """Parse a Slurm job completion file; source: plugin jobcomp/filetxt, 22.05."""
    found = []
    for line in text.splitlines():
        said = dict(re.findall(r"(?:^| )(JobId|Name|JobState|NodeList|ExitCode)=(\S*)", line))
        if {"JobId", "Name", "JobState"} <= said.keys():
            state, nodes = said["JobState"], said.get("NodeList", "").replace("(null)", "")
            reason = _exit_of(state, said.get("ExitCode", ""))
            found.append(Past(id=said["JobId"], name=said["Name"], state=state, reason=reason, nodes=nodes))
    return found


def _exit_of(state: str, code: str) -> str:
    return f"exit code {code}" if state == "FAILED" else ""
