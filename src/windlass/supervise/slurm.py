"""Slurm as a running job asks it: the next link, the links that wait, and why a signal came.

Commands get a short list of variables of ours: with SLURM_* or SBATCH_* of this job, sbatch would copy its shape and
its place. All calls are bounded; slurmctld may be away for minutes, and the job goes on meanwhile.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Callable

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.process import Completed, run
from windlass.record.causes import Cause
from windlass.supervise.job import JobDocument
from windlass.supervise.scheduler import SchedulerError
from windlass.supervise.slurm_cancels import cancelled_by, judge_cancel
from windlass.supervise.slurm_jobs import (
    LISTING_OF_ALL,
    Ended,
    SlurmJob,
    cause_of_end,
    comment_of,
    mark_of,
    newest_end,
    program_path,
    read_listing,
)

__all__ = ["PATH_BEFORE_SETUP", "SlurmScheduler", "comment_of", "mark_of", "submission_environment"]

PATH_BEFORE_SETUP = "WINDLASS_SUBMIT_PATH"
"""Variable with the batch script's PATH before it loaded modules, so that no link inherits those of the one before."""

_TIMEOUT_S = 20.0
_INHERITED = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "SLURM_CONF")
_NOTICE_TIMEOUT_S = 1.5
"""For a question that is asked while the time to save runs."""
_EARLY_S = 60.0
"""Slurm's signal may come so long before its time; source: sbatch(1), --signal."""

_LATER_START_S = 3.0
"""Slurm's times are of whole seconds, and of another machine's clock."""

_SACCT = ("sacct", "-X", "-D", "-n", "-P")
_NUM_COLUMNS = 5
_READS = frozenset({"squeue", "scontrol", "sacct"})
"""Programs whose times are wanted in seconds since 1970; a variable for sbatch would go on into the job."""

_UNKNOWN = (Cause.UNKNOWN, "")
_NEVER = ("", "None", "N/A", "Unknown")
_LIVES = ("COMPLETING", "RUNNING", "SUSPENDED")
_SILENT = ("down", "fail", "unk", "reboot", "power")
"""Beginnings of the states of nodes that may not have answered; a `*` behind a state says so too."""
_SCRIPT_FAILED = "NonZeroExitCode"
_HAD_NONE = re.compile(r"invalid job id|already complet|job/step already", re.IGNORECASE)

Runner = Callable[[Sequence[str], Mapping[str, str]], Completed]


class SlurmScheduler:
    """See `windlass.supervise.scheduler.Scheduler`."""

    def __init__(
        self, job: JobDocument, *, environ: Mapping[str, str] | None = None, runner: Runner | None = None
    ) -> None:
        self._job = job
        self._environ = os.environ if environ is None else environ
        self._runner = runner
        self._made_at = time.time()

    def queue(self, link: int, exclude: Sequence[str]) -> str:
        """See `Scheduler.queue`."""
        known = self.queued().get(link)
        if known is not None:
            return known
        argv = [part.replace("${link}", str(link)) for part in self._job.chain.submit]
        if not argv:
            raise SchedulerError(f"task {self._job.task} does not say how links are queued")
        if exclude:
            argv.insert(1, "--exclude=" + ",".join(sorted({*self._job.queue.exclude, *exclude})))
        return self._ask(argv).strip().split(";")[0]

    def queued(self) -> Mapping[int, str]:
        """See `Scheduler.queued`."""
        found: dict[int, SlurmJob] = {}
        for entry in self._listing("--name=" + self._job.queue.name):
            other = found.get(entry.link)
            if entry.mark == self._job.chain.mark and not entry.is_over:
                found[entry.link] = other if other is not None and not other.is_waiting else entry
        return {link: entry.id for link, entry in sorted(found.items())}

    def cancel(self, ids: Sequence[str]) -> None:
        """See `Scheduler.cancel`."""
        if ids:
            self._ask(["scancel", *ids], is_satisfied=_HAD_NONE)

    def let_go(self, ids: Sequence[str]) -> None:
        """See `Scheduler.let_go`."""
        if ids:
            self._ask(["scontrol", "release", *ids], is_satisfied=_HAD_NONE)

    def requeue(self) -> None:
        """See `Scheduler.requeue`."""
        self._ask(["scontrol", "requeue", self._own_id])

    def end_this_start(self) -> str:
        """Cancel this very job while it runs; its state, empty when nothing of this start is left. Idempotent.

        Raises:
            SchedulerError: nobody knows.
        """
        text = self._ask(["scontrol", "show", "job", self._own_id], is_satisfied=_HAD_NONE)
        state, restarts = _field(text, "JobState"), int(self._environ.get("SLURM_RESTART_COUNT", "0"))
        if state not in _LIVES or int(_field(text, "Restarts") or 0) > restarts:
            return ""
        if state != "COMPLETING":
            self.cancel([self._own_id])
        return state

    def avoid(self, ids: Sequence[str], hosts: Sequence[str]) -> None:
        """See `Scheduler.avoid`."""
        if not hosts:
            return
        for number in ids:
            known = _field(self._ask(["scontrol", "show", "job", number]), "ExcNodeList")
            named = set(_split_hosts(known)) | {*hosts}
            self._ask(["scontrol", "update", f"JobId={number}", "ExcNodeList=" + ",".join(sorted(named))])

    def why_told_to_go(self, *, has_time: bool = False) -> tuple[Cause, str]:
        """See `Scheduler.why_told_to_go`."""
        try:
            argv = ["scontrol", "show", "job", self._own_id]
            text = self._ask(argv, timeout_s=_TIMEOUT_S if has_time else _NOTICE_TIMEOUT_S)
            restarts = int(self._environ.get("SLURM_RESTART_COUNT", "0"))
            why = read_why(text, restarts, self._job.queue.signal_before_s)
            if why[0] is not Cause.CANCELLED or not has_time:
                return why
            shown = SlurmJob(self._environ.get("SLURM_JOB_ID", ""), "", nodes=_field(text, "NodeList"))
            found = self._judge(replace(shown, start=_field(text, "StartTime")), self._made_at)
        except SchedulerError:
            return _UNKNOWN
        return found.cause, found.message

    def has_heard(self, job_id: str) -> bool:
        """See `Scheduler.has_heard`."""
        text = self._ask(["scontrol", "show", "job", job_id])
        nodes = _field(text, "NodeList")
        if not nodes or _field(text, "JobState") in _LIVES:
            return False
        states = self._ask(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%T"]).split()
        return bool(states) and not any(state.endswith("*") or state.startswith(_SILENT) for state in states)

    def how_ended(self, job_id: str, began_at: float) -> tuple[Cause, str]:
        """See `Scheduler.how_ended`."""
        for ask in (self._end_in_listing, self._end_in_accounting):
            try:
                found = ask(job_id, began_at)
            except SchedulerError:
                continue
            if found is not None:
                return found.cause, found.message
        return _UNKNOWN

    def _end_in_listing(self, job_id: str, began_at: float) -> Ended | None:
        entries = self._listing("--jobs=" + job_id)  # of a task of an array it may be the number of the whole array
        ours = [entry for entry in entries if entry.mark == self._job.chain.mark] or entries
        ended = ours[0].how_ended(has_begun=True) if ours else None
        if ended is None or ended.cause is not Cause.CANCELLED:
            return ended
        return self._judge(replace(ours[0], id=job_id), began_at)

    def _end_in_accounting(self, job_id: str, began_at: float) -> Ended | None:
        rows = self._accounted(job_id)
        ended = newest_end(((row[1], row[2]) for row in rows), has_begun=True)
        if ended is None or ended.cause is not Cause.CANCELLED:
            return ended
        state, _, start, nodes = rows[-1][1:]
        return self._judge(SlurmJob(job_id, state, start=start, nodes=nodes), began_at)

    def _judge(self, job: SlurmJob, began_at: float) -> Ended:
        """How a cancelled job of ours ended; raises SchedulerError while accounting does not know that it is over.

        Args:
            job: as Slurm remembers it.
            began_at: when code of ours began in it.
        """
        try:
            states = [row[1] for row in self._accounted(job.id)]
        except SchedulerError:  # there is no accounting
            by = None
        else:
            by = cancelled_by(states)
            if by is None:
                raise SchedulerError(f"accounting does not say yet who ended job {job.id}", hint="it is asked again")
        reasons = self._reasons(job.nodes)
        is_later = job.started_at > began_at + _LATER_START_S
        return judge_cancel(by=by, reasons=reasons, has_begun=True, is_later_start=is_later, nodes=job.nodes)

    def _accounted(self, job_id: str) -> list[list[str]]:
        """Rows of accounting: number, state, exit code, start, nodes; of each time that the job was started."""
        columns = "--format=JobIDRaw,State,ExitCode,Start,NodeList"
        rows = [line.split("|") for line in self._ask([*_SACCT, "--jobs=" + job_id, columns]).splitlines()]
        return [row for row in rows if len(row) == _NUM_COLUMNS and row[0] == job_id]

    def _reasons(self, nodes: str) -> list[str]:
        """Why nodes of a list are out of use."""
        if not nodes:
            return []
        argv = ["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%E"]
        return [line.strip() for line in self._ask(argv).splitlines()]

    @property
    def _own_id(self) -> str:
        array, task = self._environ.get("SLURM_ARRAY_JOB_ID"), self._environ.get("SLURM_ARRAY_TASK_ID")
        return f"{array}_{task}" if array else self._environ.get("SLURM_JOB_ID", "")

    def _listing(self, which: str) -> list[SlurmJob]:
        return read_listing(self._ask([*LISTING_OF_ALL, which], is_satisfied=_HAD_NONE))

    def _ask(
        self, argv: Sequence[str], *, is_satisfied: re.Pattern[str] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> str:
        """Run one of Slurm's programs; its output.

        Args:
            is_satisfied: what a failure may say that is none to us.
        """
        program = argv[0] if "/" in argv[0] else program_path(self._job.chain.bin, argv[0])
        try:
            command, env = [program, *argv[1:]], submission_environment(self._environ)
            if argv[0] in _READS:
                env["SLURM_TIME_FORMAT"] = "%s"
            done = self._runner(command, env) if self._runner else run(command, env=env, timeout_s=timeout_s)
        except (WaitTimeoutError, PreconditionError) as error:
            raise SchedulerError(error.message, hint="it is asked again") from error
        if done.code and not (is_satisfied is not None and is_satisfied.search(done.stderr)):
            words = " ".join(done.stderr.split()) or f"exit code {done.code}"
            raise SchedulerError(f"`{argv[0]}` failed: {words}", hint="it is asked again")
        return done.stdout


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment Slurm's programs get, and so what a batch script begins with."""
    kept = {name: value for name, value in environ.items() if name in _INHERITED or name.startswith("LC_")}
    kept["PATH"] = environ.get(PATH_BEFORE_SETUP) or environ.get("PATH", os.defpath)
    return kept


def read_why(text: str, restarts: int, signal_before_s: float) -> tuple[Cause, str]:
    """Why a job that lives was told to go, from `scontrol show job`.

    Args:
        restarts: how often Slurm had started it again when this start of it began.
        signal_before_s: how long before the walltime Slurm was asked for a signal.
    """
    state, reason = _field(text, "JobState"), _field(text, "Reason")
    if _field(text, "PreemptTime") not in _NEVER or state == "PREEMPTED":
        return Cause.PREEMPTED, "Slurm takes its nodes for another job"
    ended = cause_of_end(state, reason)
    if ended is not None and ended.cause is not Cause.UNKNOWN:
        return ended.cause, ended.message
    if reason == "NodeDown":
        return Cause.NODE_LOST, "Slurm lost a node of it"
    if int(_field(text, "Restarts") or 0) > restarts:
        return Cause.PREEMPTED, "Slurm puts it back into the queue"
    left_s = _seconds(_field(text, "TimeLimit")) - _seconds(_field(text, "RunTime"))
    if reason == "TimeLimit" or left_s <= signal_before_s + _EARLY_S:
        return Cause.WALLTIME, f"its walltime is over in {max(0.0, left_s):.0f} s"
    return _why_completing(reason) if state == "COMPLETING" else _UNKNOWN


def _why_completing(reason: str) -> tuple[Cause, str]:
    """Why a job ends whose supervisors live: Slurm does not show its final state yet, but a reason where it failed."""
    if reason == _SCRIPT_FAILED:
        return Cause.KILLED, f"its batch script ended before it (Slurm: FAILED, {reason})"
    failed = cause_of_end("FAILED", reason, has_begun=True)
    if failed is not None and failed.cause is not Cause.UNKNOWN:
        return failed.cause, failed.message
    return Cause.CANCELLED, "it was cancelled in Slurm"


def _field(text: str, name: str) -> str:
    match = re.search(r"(?:^|\s)" + name + r"=(\S*)", text)
    return "" if match is None or match.group(1) == "(null)" else match.group(1)


def _seconds(text: str) -> float:
    """Slurm's `2-03:04:05`; infinite for UNLIMITED and what is no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return float("inf")
    days, hours, minutes, seconds = (int(piece or 0) for piece in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _split_hosts(text: str) -> list[str]:
    """The parts of a host list, with brackets left as they are: `n[1-2],m3` is two."""
    return re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text)
