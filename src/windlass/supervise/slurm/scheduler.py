"""Slurm as the scheduler of a running job: queues links, and finds the reason for a signal.

Commands get only a few variables: with SLURM_* or SBATCH_* of this job, sbatch would copy its shape and nodes.
All calls have a time limit; slurmctld may be down for minutes, while the job continues.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Callable

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.process import Completed, run
from windlass.record.causes import Cause
from windlass.supervise.chain.scheduler import PastLink, SchedulerError
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.cancels import cancelled_by, end_of_cancelled
from windlass.supervise.slurm.job_listing import (
    ACCOUNTED,
    LISTING_OF_ALL,
    AccountedJob,
    JobEnd,
    SlurmJob,
    cause_of_end,
    comment_of,
    mark_of,
    program_path,
    read_accounted,
    read_comment,
    read_listing,
    time_of,
)

__all__ = ["PATH_BEFORE_SETUP", "SlurmScheduler", "comment_of", "mark_of", "submission_environment"]

PATH_BEFORE_SETUP = "WINDLASS_SUBMIT_PATH"
"""Variable with the batch script's PATH before it loaded modules, so that a link does not inherit the previous
modules."""

_TIMEOUT_S = 20.0
_INHERITED = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "SLURM_CONF")
_NOTICE_TIMEOUT_S = 1.5
"""Time limit for a query during the time to save."""
_EARLY_S = 60.0
"""Time by which Slurm may send its signal early; source: sbatch(1), --signal."""

_LATER_START_S = 3.0
"""Tolerance for Slurm's times, which are whole seconds of another machine's clock."""

_READS = frozenset({"squeue", "scontrol", "sacct"})
"""Programs that print times in seconds since 1970; with sbatch the variable would be passed to the job."""

_UNKNOWN = (Cause.UNKNOWN, "")
_NEVER = ("", "None", "N/A", "Unknown")
_LIVES = ("COMPLETING", "RUNNING", "SUSPENDED")
_SILENT = ("down", "fail", "unk", "reboot", "power")
"""Prefixes of states in which a node may not respond; a trailing `*` means the same."""
_SCRIPT_FAILED = "NonZeroExitCode"
_ID = re.compile(r"[0-9]{1,20}")
_HAD_NONE = re.compile(r"invalid job id|already complet|job/step already", re.IGNORECASE)

Runner = Callable[[Sequence[str], Mapping[str, str]], Completed]


class SlurmScheduler:
    """Slurm as the scheduler of a running job; see `JobScheduler`.

    A controller that lost its state reuses ids. So an id alone identifies nothing: Slurm's reply about it counts only
    with this job's mark, or, from accounting, with its name and a submission before its start.

    Args:
        link: number of the link that asks; 0 if unknown, so that only the mark is compared.
    """

    def __init__(
        self,
        job: JobDocument,
        *,
        link: int = 0,
        environ: Mapping[str, str] | None = None,
        runner: Runner | None = None,
    ) -> None:
        self._job, self._link = job, link
        self._environ = os.environ if environ is None else environ
        self._runner = runner
        self._made_at = time.time()

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """See `JobScheduler.__init__`."""
        known = self.queued().get(link)
        if known is not None:
            return known
        argv = [part.replace("${link}", str(link)) for part in self._job.chain.submit]
        if not argv:
            raise SchedulerError(f"task {self._job.task} has no command to queue links")
        if exclude:
            argv.insert(1, "--exclude=" + ",".join(sorted({*self._job.queue.exclude, *exclude})))
        reply = self._ask(argv).strip().split(";")[0]
        if not _ID.fullmatch(reply):
            raise SchedulerError(f"`sbatch` printed no job id: {reply[:80]!r}", hint="it is retried")
        return reply

    def queued(self) -> Mapping[int, str]:
        """See `JobScheduler.queued`."""
        found: dict[int, SlurmJob] = {}
        for entry in self._listing("--name=" + self._job.queue.name):
            other = found.get(entry.link)
            if entry.mark == self._job.chain.mark and not entry.is_over:
                found[entry.link] = other if other is not None and not other.is_waiting else entry
        return {link: entry.id for link, entry in sorted(found.items())}

    def cancel(self, ids: Sequence[str]) -> None:
        """See `JobScheduler.cancel`."""
        if ids:
            self._ask(["scancel", *ids], is_satisfied=_HAD_NONE)

    def let_go(self, ids: Sequence[str]) -> None:
        """See `JobScheduler.let_go`."""
        if not ids:
            return
        held = [entry for entry in self._listing("--jobs=" + ",".join(ids)) if entry.is_waiting and entry.mark]
        ours = [number for number in ids if number in {entry.id for entry in held}]
        if ours:
            self._ask(["scontrol", "release", *ours], is_satisfied=_HAD_NONE)

    def requeue(self) -> None:
        """See `JobScheduler.requeue`."""
        if not self._show_own():
            raise SchedulerError(
                f"Slurm does not know job {self._own_id} of this run", hint="`windlass ps --reconcile` continues it"
            )
        self._ask(["scontrol", "requeue", self._own_id])

    def end_this_start(self) -> str:
        """Cancel this job if it runs; return its state, or "" if nothing of this start is left. Idempotent.

        Raises:
            SchedulerError: the state is unknown.
        """
        text = self._show_own()
        state = _field(text, "JobState")
        if state not in _LIVES or self._is_later_start(text):
            return ""
        if state != "COMPLETING":
            self.cancel([self._own_id])
        return state

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """See `JobScheduler.avoid`."""
        if not hosts:
            return
        for number in ids:
            text = self._show(number, self._job.chain.mark)
            if not text:
                continue
            known = _field(text, "ExcNodeList")
            named = set(_split_hosts(known)) | {*hosts}
            self._ask(["scontrol", "update", f"JobId={number}", "ExcNodeList=" + ",".join(sorted(named))])

    def explain_notice(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """See `JobScheduler.explain_notice`."""
        try:
            text = self._show_own(timeout_s=_TIMEOUT_S if has_time else _NOTICE_TIMEOUT_S)
            if not text:
                return _UNKNOWN
            restarts = int(self._environ.get("SLURM_RESTART_COUNT", "0"))
            why = read_why(text, restarts, self._job.queue.signal_before_s)
            if why[0] is not Cause.CANCELLED or not has_time:
                return why
            number, queue = self._environ.get("SLURM_JOB_ID", ""), self._job.queue
            own = PastLink(number, self._made_at, self._job.chain.mark, queue.name, self._link)
            found = self._judge(
                SlurmJob(number, "", start=_field(text, "StartTime"), nodes=_field(text, "NodeList")), own
            )
        except SchedulerError:
            return _UNKNOWN
        return found.cause, found.message

    def is_over(self) -> bool:
        """See `JobScheduler.is_over`."""
        text = self._show_own()
        seen = SlurmJob(self._own_id, _field(text, "JobState"))
        return not text or seen.is_over or seen.is_waiting or seen.state == "COMPLETING" or self._is_later_start(text)

    def is_end_confirmed(self, past: PastLink) -> bool:
        """See `JobScheduler.is_end_confirmed`."""
        text = self._show(past.job_id, past.mark, past.link)
        nodes = _field(text, "NodeList")
        if not nodes or _field(text, "JobState") in _LIVES:
            return False
        states = self._ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%T"]).split()
        return bool(states) and not any(state.endswith("*") or state.startswith(_SILENT) for state in states)

    def how_ended(self, past: PastLink) -> tuple[Cause, str]:
        """See `JobScheduler.how_ended`."""
        for ask in (self._end_in_listing, self._end_in_accounting):
            try:
                found = ask(past)
            except SchedulerError:
                continue
            if found is not None:
                return found.cause, found.message
        return _UNKNOWN

    def _end_in_listing(self, past: PastLink) -> JobEnd | None:
        entries = self._listing("--jobs=" + past.job_id)  # for an array task maybe the number of the whole array
        ours = [entry for entry in entries if _is_of(entry.mark, entry.link, past.mark, past.link)]
        ended = ours[0].how_ended(has_begun=True) if ours else None
        if ended is None or ended.cause is not Cause.CANCELLED:
            return ended
        return self._judge(ours[0], past)

    def _end_in_accounting(self, past: PastLink) -> JobEnd | None:
        row = self._accounted(past)
        ended = cause_of_end(row.state, row.code, has_begun=True) if row is not None else None
        if row is None or ended is None or ended.cause is not Cause.CANCELLED:
            return ended
        return self._judge(SlurmJob(past.job_id, row.state, start=row.start, nodes=row.nodes), past)

    def _judge(self, job: SlurmJob, past: PastLink) -> JobEnd:
        """Return how a cancelled windlass job ended; raises SchedulerError while accounting has no record of its end.

        Args:
            job: as Slurm remembers it.
        """
        try:
            row = self._accounted(past)
        except SchedulerError:  # there is no accounting
            by = None
        else:
            by = cancelled_by([row.state] if row is not None else [])
            if by is None:
                raise SchedulerError(
                    f"accounting has not recorded yet who ended job {past.job_id}", hint="it is retried"
                )
        reasons = self._reasons(job.nodes)
        is_later = job.started_at > past.began_at + _LATER_START_S
        return end_of_cancelled(by=by, reasons=reasons, has_begun=True, is_later_start=is_later, nodes=job.nodes)

    def _accounted(self, past: PastLink) -> AccountedJob | None:
        """Return accounting's record of a link: its last submission before windlass's code began in it.

        A requeue adds a submission, and so does another job that gets the same id.
        """
        rows = read_accounted(self._ask([*ACCOUNTED, "--jobs=" + past.job_id]))
        latest = past.began_at + _LATER_START_S
        ours = [row for row in rows if row.id == past.job_id and past.name in ("", row.name)]
        ours = [row for row in ours if time_of(row.submitted) <= latest]
        return max(ours, key=lambda row: time_of(row.submitted), default=None)

    def _reasons(self, nodes: str) -> list[str]:
        """Return why the nodes were drained."""
        if not nodes:
            return []
        argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%E"]
        return [line.strip() for line in self._ask(argv).splitlines()]

    @property
    def _own_id(self) -> str:
        array, task = self._environ.get("SLURM_ARRAY_JOB_ID"), self._environ.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array else self._environ.get("SLURM_JOB_ID", "")

    def _is_later_start(self, text: str) -> bool:
        return _count(_field(text, "Restarts")) > int(self._environ.get("SLURM_RESTART_COUNT", "0"))

    def _show_own(self, *, timeout_s: float = _TIMEOUT_S) -> str:
        return self._show(self._own_id, self._job.chain.mark, self._link, timeout_s=timeout_s)

    def _show(self, job_id: str, mark: str, link: int = 0, *, timeout_s: float = _TIMEOUT_S) -> str:
        """Return the controller's record of a link; empty if it has none, or another job has that id."""
        text = self._ask(["scontrol", "show", "job", job_id], is_satisfied=_HAD_NONE, timeout_s=timeout_s)
        for record in re.split(r"(?m)^(?=JobId=)", text):  # one for each task of an array
            comment = re.search(r"(?m)^\s*Comment=(.*)$", record)
            if comment is not None and _is_of(*read_comment(comment[1]), mark, link):
                return record
        return ""

    def _listing(self, which: str) -> list[SlurmJob]:
        return read_listing(self._ask([*LISTING_OF_ALL, which], is_satisfied=_HAD_NONE))

    def _ask(
        self, argv: Sequence[str], *, is_satisfied: re.Pattern[str] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> str:
        """Run one of Slurm's programs and return its output.

        Args:
            is_satisfied: pattern of failures that count as success.
        """
        program = argv[0] if "/" in argv[0] else program_path(self._job.chain.bin, argv[0])
        try:
            command, env = [program, *argv[1:]], submission_environment(self._environ)
            if argv[0] in _READS:
                env["SLURM_TIME_FORMAT"] = "%s"
            done = self._runner(command, env) if self._runner else run(command, env=env, timeout_s=timeout_s)
        except (WaitTimeoutError, PreconditionError) as error:
            raise SchedulerError(error.message, hint="it is retried") from error
        if done.code and not (is_satisfied is not None and is_satisfied.search(done.stderr)):
            words = " ".join(done.stderr.split()) or f"exit code {done.code}"
            raise SchedulerError(f"`{argv[0]}` failed: {words}", hint="it is retried")
        return done.stdout


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for running Slurm's programs, the same as in a batch script."""
    kept = {name: value for name, value in environ.items() if name in _INHERITED or name.startswith("LC_")}
    kept["PATH"] = environ.get(PATH_BEFORE_SETUP) or environ.get("PATH", os.defpath)
    return kept


def read_why(text: str, restarts: int, signal_before_s: float) -> tuple[Cause, str]:
    """Return why a live job received a notice, from the output of `scontrol show job`.

    Args:
        restarts: number of restarts when this start of the job began.
        signal_before_s: time before the walltime at which Slurm was asked to send a signal.
    """
    state, reason = _field(text, "JobState"), _field(text, "Reason")
    if _field(text, "PreemptTime") not in _NEVER or state == "PREEMPTED":
        return Cause.PREEMPTED, "Slurm takes its nodes for another job"
    ended = cause_of_end(state, reason)
    if ended is not None and ended.cause is not Cause.UNKNOWN:
        return ended.cause, ended.message
    if reason == "NodeDown":
        return Cause.NODE_LOST, "Slurm lost a node of it"
    if _count(_field(text, "Restarts")) > restarts:
        return Cause.PREEMPTED, "Slurm puts it back into the queue"
    left_s = _seconds(_field(text, "TimeLimit")) - _seconds(_field(text, "RunTime"))
    if reason == "TimeLimit" or left_s <= signal_before_s + _EARLY_S:
        return Cause.WALLTIME, f"its walltime is over in {max(0.0, left_s):.0f} s"
    return _why_completing(reason) if state == "COMPLETING" else _UNKNOWN


def _why_completing(reason: str) -> tuple[Cause, str]:
    """Return why a job in state COMPLETING ends, from its reason, since its final state is not visible yet."""
    if reason == _SCRIPT_FAILED:
        return Cause.KILLED, f"its batch script ended before it (Slurm: FAILED, {reason})"
    failed = cause_of_end("FAILED", reason, has_begun=True)
    if failed is not None and failed.cause is not Cause.UNKNOWN:
        return failed.cause, failed.message
    return Cause.CANCELLED, "it was cancelled in Slurm"


def _is_of(mark: str, link: int, wanted: str, wanted_link: int) -> bool:
    """Return whether a comment's mark and link are the wanted ones; 0 means any link."""
    return bool(wanted) and mark == wanted and wanted_link in (0, link)


def _field(text: str, name: str) -> str:
    match = re.search(r"(?:^|\s)" + name + r"=(\S*)", text)
    return "" if match is None or match.group(1) == "(null)" else match.group(1)


def _count(text: str) -> int:
    """Parse a number; 0 if invalid."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else 0


def _seconds(text: str) -> float:
    """Parse a duration like `2-03:04:05`; infinite for UNLIMITED and invalid ones."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{1,9}):(\d{1,9})", text)
    if match is None:
        return float("inf")
    days, hours, minutes, seconds = (int(piece or 0) for piece in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _split_hosts(text: str) -> list[str]:
    """Split a host list without expanding brackets: `n[1-2],m3` gives two items."""
    return re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text)
