"""The virtual Slurm's command line, as far as a job asks it: squeue, sbatch, scancel, scontrol and sacct, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tests.sim.node import WALL_START, Node
from tests.sim.site.job import PENDING, RUNNING, SlurmLink
from windlass.core.errors import WaitTimeoutError
from windlass.core.process import Completed
from windlass.supervise.slurm.job_listing import read_listing

if TYPE_CHECKING:
    from tests.sim.site.slurm import VirtualSlurm

__all__ = ["answer", "cancel", "remembered", "submit_link"]


class _RefusedError(Exception):
    """The program ends with code 1 and this text."""


def answer(slurm: VirtualSlurm, node: Node | None, argv: Sequence[str]) -> Completed:
    """Run one program from a node; None: from a client.

    Raises:
        WaitTimeoutError: no answer.
    """
    if slurm.is_away or (node is not None and node.is_cut_from_scheduler):
        if slurm.watch is not None:
            slurm.watch.on_unanswered()
        raise WaitTimeoutError(f"`{argv[0]}` did not end")
    program = _PROGRAMS[argv[0]]
    try:
        return Completed(tuple(argv), 0, program(slurm, list(argv[1:])), "")
    except _RefusedError as error:
        return Completed(tuple(argv), 1, "", str(error))


def remembered(slurm: VirtualSlurm, number: int) -> SlurmLink:
    """The job of that id, unless it ended long ago."""
    link = slurm.links.get(number)
    if link is None or (link.is_over and slurm.world.now > link.ended_at + slurm.site.remembers_s):
        raise _RefusedError("slurm_load_jobs error: Invalid job id specified")
    return link


def submit_link(slurm: VirtualSlurm, folder: str, number: int, exclude: frozenset[str] = frozenset()) -> str:
    """Take a submission, whose reply may be lost, and which then may land late or never.

    Raises:
        WaitTimeoutError: nobody knows.
    """
    job = slurm.jobs[folder]
    slurm.num_submissions += 1
    if slurm.num_submissions - 1 not in slurm.lost_replies:
        return str(slurm.add(job, number, exclude).id)
    slurm.cluster.monitor.on_fault()
    slurm.world.log("fault: the reply to a submission of %s link %d is lost", folder, number)
    if slurm.watch is not None:
        slurm.watch.on_lost_reply(job)
    how = slurm.world.random.choice(("at once", "late", "late", "never"))
    if how == "at once":
        slurm.add(job, number, exclude)
    elif how == "late":
        slurm.num_landing += 1
        slurm.world.at(slurm.world.uniform(1.0, 100.0), _land, slurm, folder, number, exclude)
    raise WaitTimeoutError("`sbatch` did not end")


def cancel(slurm: VirtualSlurm, link: SlurmLink) -> None:
    """End a link, as `scancel` does; the controller may forget that of one that waits."""
    if link.state == PENDING and slurm.world.now < slurm.deaf_until:
        slurm.world.log("slurm: forgets that %d was cancelled", link.id)
        slurm.cluster.monitor.on_fault()
        return
    slurm.terminate(link, "CANCELLED", "None")


def _land(slurm: VirtualSlurm, folder: str, number: int, exclude: frozenset[str]) -> None:
    slurm.num_landing -= 1
    slurm.cluster.monitor.on_fault()
    slurm.add(slurm.jobs[folder], number, exclude)


def _sbatch(slurm: VirtualSlurm, words: list[str]) -> str:
    exclude = [word.partition("=")[2] for word in words if word.startswith("--exclude=")]
    hosts = frozenset(exclude[0].split(",")) if exclude else frozenset()
    return submit_link(slurm, words[-2], int(words[-1]), hosts) + "\n"


def _squeue(slurm: VirtualSlurm, words: list[str]) -> str:
    names = [word.partition("=")[2] for word in words if word.startswith("--name=")]
    ids = [word.partition("=")[2] for word in words if word.startswith("--jobs=")]
    if ids:
        return _line(remembered(slurm, int(ids[0])))
    now = slurm.world.now
    known = [link for link in slurm.links.values() if link.name in names]
    text = "".join(_line(link) for link in known if not link.is_over or now <= link.ended_at + slurm.site.remembers_s)
    assert len(read_listing(text)) == text.count("\x1e")
    return text


def _line(link: SlurmLink) -> str:
    state = "COMPLETING" if link.is_completing else link.state
    nodes = ",".join(node.name for node in link.nodes)
    fields = (str(link.id), state, link.reason, _start(link), "N/A", nodes, link.name, link.comment)
    return "\x1e" + "\x1f".join(fields) + "\n"


def _scancel(slurm: VirtualSlurm, words: list[str]) -> str:
    for number in words:
        link = slurm.links.get(int(number))
        if link is not None:
            cancel(slurm, link)
    return ""


def _scontrol(slurm: VirtualSlurm, words: list[str]) -> str:
    if words[0] == "requeue":
        link = remembered(slurm, int(words[1]))
        if slurm.site.mode != "requeue":
            raise _RefusedError("Requested operation is presently disabled")
        slurm.requeue(link)
        return ""
    if words[0] == "update":
        link = remembered(slurm, int(words[1].partition("=")[2]))
        if link.state != PENDING:
            raise _RefusedError("Job is no longer pending execution")
        link.exclude = frozenset(words[2].partition("=")[2].split(","))
        return ""
    return _show(slurm, remembered(slurm, int(words[2])))


def _show(slurm: VirtualSlurm, link: SlurmLink) -> str:
    limit_s = link.job.task.per_job_s
    preempted = "2026-01-01T00:00:00" if link.is_preempted else "None"
    run_s = max(0.0, slurm.world.now - link.started_at)
    return (
        f"JobId={link.id} JobName={link.name}\n   JobState={'COMPLETING' if link.is_completing else link.state} "
        f"Reason={link.reason} Dependency=(null)\n   Requeue=0 Restarts={link.restart + (link.state == 'REQUEUED')} BatchFlag=1\n   "
        f"RunTime={_time(run_s)} TimeLimit={_time(limit_s) if limit_s else 'UNLIMITED'}\n   "
        f"PreemptTime={preempted}\n   ExcNodeList={','.join(sorted(link.exclude)) or '(null)'}\n"
        f"   Comment={link.comment}\n"
    )


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 86400}-{whole // 3600 % 24:02}:{whole // 60 % 60:02}:{whole % 60:02}"


def _sacct(slurm: VirtualSlurm, words: list[str]) -> str:
    if not slurm.site.has_accounting:
        raise _RefusedError("Slurm accounting storage is disabled")
    ids = [word.partition("=")[2] for word in words if word.startswith("--jobs=")]
    link = slurm.links.get(int(ids[0]))
    if link is None:
        return ""
    state = link.state if link.is_over or link.state == RUNNING else "PENDING"
    by = f" by {link.by}" if state == "CANCELLED" and link.by >= 0 else ""
    nodes, submitted = ",".join(node.name for node in link.nodes), int(WALL_START + link.submitted_at)
    return f"{link.id}|{link.name}|{state}{by}|0:0|{submitted}|{_start(link)}|{nodes}\n"


def _sinfo(slurm: VirtualSlurm, words: list[str]) -> str:
    (nodes,) = (word.partition("=")[2] for word in words if word.startswith("--nodes="))
    return "".join(f"{slurm.reason_of(node) or 'none'}\n" for node in nodes.split(","))


def _start(link: SlurmLink) -> str:
    return str(int(WALL_START + link.started_at)) if link.started_at >= 0 else "Unknown"


_PROGRAMS: dict[str, Callable[[VirtualSlurm, list[str]], str]] = {
    "sbatch": _sbatch,
    "squeue": _squeue,
    "sinfo": _sinfo,
    "scancel": _scancel,
    "scontrol": _scontrol,
    "sacct": _sacct,
}
