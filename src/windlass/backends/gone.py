"""Why a job of this machine is gone although nobody recorded an end: its processes were killed, or the machine went down."""

from __future__ import annotations

from pathlib import Path

from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, boot_id, is_alive
from windlass.record.causes import Cause
from windlass.record.journal import JournalReader
from windlass.record.state import fold
from windlass.supervise.fencing.guard import GAVE_UP
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.kernel_log import killed_for_memory

__all__ = ["why_gone"]

_MAX_NAMED = 4


def why_gone(folder: Path, guard: ProcessId) -> tuple[str, str]:
    """A cause and the reason in words; both empty where the job's processes do not tell.

    Args:
        folder: of the job, whose guards and supervisors are all gone.
        guard: the process that the submission started.
    """
    if guard.world and guard.world.partition(".")[0] != boot_id():
        return str(Cause.NODE_LOST), "the machine was restarted"
    crashed = next(iter(sorted(folder.glob(GAVE_UP.format("*")))), None)
    if crashed is not None:
        trace = folder / f"supervisor-{crashed.name.rpartition('-')[2]}.crash"
        return str(Cause.UNKNOWN), f"its supervisor crashed again and again: see {trace}"
    ours = _ours(folder) or {0: {"guard": guard}}
    users = _users(folder)
    for rank, process in users.items():
        ours.setdefault(rank, {})["the code's process"] = process
    killed = killed_for_memory([process for named in ours.values() for process in named.values()])
    if killed is not None:
        return str(Cause.OUT_OF_MEMORY), f"the kernel killed process {killed.pid} for want of memory"
    return str(Cause.KILLED), _sentence(ours)


def _ours(folder: Path) -> dict[int, dict[str, ProcessId]]:
    """Guard and supervisor of each replica, by rank."""
    found = {}
    for path in folder.glob("guard-*.json"):
        named = {name: ProcessId.parse(str(text)) for name, text in read_json(path).items() if text != "None"}
        found[int(path.stem.rpartition("-")[2])] = named
    return dict(sorted(found.items()))


def _users(folder: Path) -> dict[int, ProcessId]:
    """The user's processes that are gone although nobody recorded their end, by rank."""
    job = JobDocument.read(folder / "job.json")
    task = fold(JournalReader(Path(job.run_dir) / "journal", prefix=f"{job.task}.").poll()).task(job.task)
    newest = task.newest_attempt
    if newest is None or newest.job != job.job:
        return {}
    found = {rank: each for rank, each in newest.replicas.items() if each.process and each.end is None}
    processes = {rank: ProcessId.parse(each.process) for rank, each in sorted(found.items())}
    return {rank: process for rank, process in processes.items() if not is_alive(process)}


def _sentence(ours: dict[int, dict[str, ProcessId]]) -> str:
    """`killed from outside: guard 12, supervisor 13 and the code's process 14`; of big gangs the first replicas."""
    parts = []
    for rank, named in list(ours.items())[:_MAX_NAMED]:
        of = f" of replica {rank}" if len(ours) > 1 else ""
        words = [f"{name} {process.pid}" for name, process in named.items()]
        parts.append((", ".join(words[:-1]) + " and " if words[1:] else "") + words[-1] + of)
    rest = f"; and those of {len(ours) - _MAX_NAMED} more replicas" if len(ours) > _MAX_NAMED else ""
    return f"killed from outside: {'; '.join(parts)}{rest}"
