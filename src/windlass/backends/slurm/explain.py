"""Reasons why a Slurm job waits, what they mean for the user, and the expected start.

Source: squeue(1), JOB REASON CODES, and the names in Slurm's own table (22.05 to 25.05).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from windlass.supervise.slurm.job_listing import SlurmJob

__all__ = ["HELD", "can_start", "why_it_waits", "why_suspended"]

HELD = "JobHeldUser"
"""Held by the user, or by windlass until the tasks before it end."""

_WORDS = {
    "": "Slurm has not considered it yet",
    "Resources": "it is next, and waits for free nodes",
    "Priority": "jobs with a higher priority are ahead of it",
    "Dependency": "it waits for an earlier link of the same run to end",
    "BeginTime": "it waits for its begin time; a requeued job waits about two minutes",
    "Licenses": "it waits for a licence",
    "Reservation": "it waits for its reservation to begin",
    "Prolog": "its nodes are being prepared",
    "Cleaning": "its nodes are still being cleaned up after its earlier start",
    "NodeDown": "a node that it needs is down",
    "FrontEndDown": "no front end node is up",
    "PartitionDown": "its partition is down for now",
    "PartitionInactive": "its partition starts no jobs for now",
    "BurstBufferResources": "it waits for room in the burst buffer",
    "BurstBufferStageIn": "its data is being staged in",
    "JobArrayTaskLimit": "the limit of running tasks of its array is reached",
    HELD: "you hold it: release it with `scontrol release {id}`",
    "JobHeldAdmin": "an administrator of the site holds it; ask the site",
    "JobHoldMaxRequeue": "it was requeued too often, so Slurm holds it: release it with `scontrol release {id}`",
    "MaxRequeueExceeded": "it was requeued too often, so Slurm holds it: release it with `scontrol release {id}`",
    "ReservationDeleted": "its reservation is gone, so it never starts; cancel it",
    "DependencyNeverSatisfied": "its dependency can never be satisfied, so it never starts; cancel it",
    "PartitionTimeLimit": "its walltime is above the partition's limit, so it never starts; lower `limit.per_job`",
    "PartitionNodeLimit": "it requests more nodes than the partition allows a job, so it never starts; request fewer",
    "PartitionConfig": "the partition's limits or nodes do not allow its request, so it never starts",
    "BadConstraints": "no node matches its request, so it never starts",
    "InvalidAccount": "its account is no longer valid, so it does not start",
    "InvalidQOS": "its QOS is no longer valid, so it does not start",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QOS may not be used in this partition",
    "AssociationJobLimit": "your account is at its limit of running jobs",
    "AssociationResourceLimit": "your account is at its limit of resources",
    "AssociationTimeLimit": "your account has used up its time",
    "QOSJobLimit": "its QOS is at its limit of running jobs",
    "QOSResourceLimit": "its QOS is at its limit of resources",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSUsageThreshold": "usage of its QOS is above the threshold",
    "MaxMemPerLimit": "it requests more memory than the site allows a job of its size",
    "SystemFailure": "Slurm failed to start it; report it to the site",
    "NonZeroExitCode": "its earlier start failed",
}
_PREFIXES = (
    ("ReqNodeNotAvail", "a required node is not available{rest}: down, drained, reserved or in maintenance"),
    ("job requeued in held state", "Slurm requeued and holds it: release it with `scontrol release {id}`"),
    (
        "launch failed requeued held",
        "a node failed to start it, so Slurm holds it: release it with `scontrol release {id}`",
    ),
    ("Nodes required for job are DOWN", "nodes that it needs are down, drained or reserved"),
)
_LIMITS = re.compile(
    r"(?P<whose>QOS|Assoc)(?P<kind>Grp|Max|Min)(?P<what>GRES|Gres|Cpu|CPU|Node|Memory|Mem|Wall|Jobs?|Submit|Billing|BB|License"
    r"|Energy|Unknown)\w*?(?P<per>PerUser|PerAccount|PA|PU|PerJob|PJ|PerNode|PN)?(?:Run)?(?:Minutes|Mins)?(?:Limit)?$",
    re.IGNORECASE,
)
_WHAT = {
    "gres": "GPUs",
    "cpu": "CPUs",
    "node": "nodes",
    "memory": "memory",
    "mem": "memory",
    "wall": "walltime",
    "job": "jobs",
    "jobs": "jobs",
    "submit": "submitted jobs",
    "billing": "billing units",
    "bb": "burst buffer",
    "license": "licences",
    "energy": "energy",
}
_PER = {"peruser": "one user", "pu": "one user", "peraccount": "one account", "pa": "one account"}
_NEVER = re.compile(r"never starts|does not start|may not")


def why_it_waits(job: SlurmJob, after: Sequence[str] = (), *, is_evaluation: bool = False) -> str:
    """Return why a job waits and when Slurm expects it to start, in one sentence with Slurm's own reason.

    Args:
        after: tasks that we hold the job for.
        is_evaluation: whether it waits for a checkpoint of that task, and not for its end.
    """
    word = job.reason.partition(",")[0].strip()
    what = "a checkpoint of task" if is_evaluation else "task"
    words = f"it waits for {what} {' and task '.join(after)}" if word == HELD and after else _words(job, word)
    said = f" (Slurm: {job.reason})" if job.reason else ""
    start = f"; expected to start {_moment(job.start)}" if job.start and not _NEVER.search(words) else ""
    return words + said + start


def can_start(job: SlurmJob) -> bool:
    """Return True if the job can start later; False if Slurm's reason does not change with time."""
    return not _NEVER.search(_words(job, job.reason.partition(",")[0].strip()))


def _words(job: SlurmJob, word: str) -> str:
    if word in _WORDS:
        return _WORDS[word].format(id=job.id)
    for prefix, words in _PREFIXES:
        if job.reason.startswith(prefix):
            rest = job.reason.partition(":")[2].rstrip(")")
            return words.format(id=job.id, rest=f" ({rest})" if rest else "")
    return _limit(word) or "other reason"


def _limit(word: str) -> str:
    """Describe a limit such as `QOSMaxGRESPerUser`; Slurm has about a hundred of them."""
    match = _LIMITS.match(word)
    if match is None:
        return ""
    whose = "its QOS" if match["whose"].lower() == "qos" else "your account"
    what = _WHAT.get(match["what"].lower(), "resources")
    if "minutes" in word.lower() or "mins" in word.lower():
        what = f"time on {what}"
    per = (match["per"] or "").lower()
    if match["kind"].lower() == "min":
        return f"it requests fewer {what} than {whose} requires, so it never starts"
    if per in ("perjob", "pj", "pernode", "pn"):
        return f"it requests more {what} than {whose} allows one job, so it never starts"
    who = _PER.get(per) or ("the whole group" if match["kind"].lower() == "grp" else "one user")
    return f"{whose} limits the {what} that {who} may use at once"


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text


def why_suspended(job: SlurmJob) -> str:
    """Return why a job does not run on the nodes that it has, as far as Slurm reports it; empty while it runs.

    Source: squeue(1), JOB STATE CODES (`SUSPENDED`, `STOPPED`); scontrol(1), `suspend` is for operators and administrators.
    """
    if job.state == "SUSPENDED":
        whom = "by an operator, or for a job of a higher partition"
        return f"Slurm has suspended link {job.link} on {job.nodes} ({job.id}), {whom}; Slurm does not report which"
    if job.state == "STOPPED":
        return f"link {job.link} on {job.nodes} ({job.id}) was stopped with SIGSTOP and keeps its nodes"
    return ""
