"""State of a job's processes on this machine, and why they are gone if no end was recorded."""

from __future__ import annotations

from pathlib import Path

from windlass.backends.local.submit import SUBMITTED, read_dictionary
from windlass.backends.protocol import JobState, Observation, Submission
from windlass.core.errors import PreconditionError
from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, boot_id, is_alive, process_world
from windlass.record.causes import Cause
from windlass.record.journal import JournalReader
from windlass.record.state import fold
from windlass.supervise.fencing.guard_file import GAVE_UP
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.kernel_log import killed_for_memory

__all__ = ["is_visible", "observation_of", "processes_of", "why_gone"]

_MAX_NAMED = 4


def observation_of(job: Submission) -> Observation:
    """Return RUNNING while a guard or supervisor of the job lives, GONE if none does, UNKNOWN if that is unclear."""
    if not is_visible(job.folder):
        return Observation(
            state=JobState.UNKNOWN, detail="its processes run on another machine or in another container"
        )
    try:
        living = [process for process in processes_of(job) if is_alive(process)]
    except (PreconditionError, ValueError) as error:
        return Observation(state=JobState.UNKNOWN, detail=f"its records are damaged: {error}")
    if living:
        return Observation(state=JobState.RUNNING, detail=f"{len(living)} processes of windlass")
    cause, detail = why_gone(job.folder, ProcessId.parse(job.backend_id))
    return Observation(state=JobState.GONE, detail=detail, cause=cause)


def is_visible(folder: Path) -> bool:
    """Return whether the job's process ids can be checked on this machine, even after a reboot."""
    try:
        where = read_dictionary(folder / SUBMITTED).get("where")
    except (FileNotFoundError, PreconditionError):
        return True
    here = process_world()
    if not isinstance(where, dict) or where["machine"] != here["machine"]:
        return not isinstance(where, dict)
    return bool(where["boot"] != here["boot"] or where["namespace"] == here["namespace"])


def processes_of(job: Submission) -> list[ProcessId]:
    """Return all guards and supervisors that the job recorded."""
    processes = [ProcessId.parse(job.backend_id)]
    for path in job.folder.glob("guard-*.json"):
        processes.extend(ProcessId.parse(str(text)) for text in read_dictionary(path).values() if text != "None")
    return processes


def why_gone(folder: Path, guard: ProcessId) -> tuple[str, str]:
    """Return a cause and a sentence: the processes were killed, or the machine was restarted.

    Args:
        folder: the folder of the job, all of whose guards and supervisors are gone.
        guard: the process that the submission started.
    """
    if guard.world and guard.world.partition(".")[0] != boot_id():
        return str(Cause.NODE_LOST), "the machine was restarted"
    crashed = next(iter(sorted(folder.glob(GAVE_UP.format("*")))), None)
    if crashed is not None:
        trace = folder / f"supervisor-{crashed.name.rpartition('-')[2]}.crash"
        return str(Cause.UNKNOWN), f"its supervisor crashed again and again: see {trace}"
    by_rank = _own_processes(folder) or {0: {"guard": guard}}
    for rank, process in _user_processes(folder).items():
        by_rank.setdefault(rank, {})["the code's process"] = process
    killed = killed_for_memory([process for named in by_rank.values() for process in named.values()])
    if killed is not None:
        return str(Cause.OUT_OF_MEMORY), f"the kernel killed process {killed.pid} because memory ran out"
    return str(Cause.KILLED), _sentence(by_rank)


def _own_processes(folder: Path) -> dict[int, dict[str, ProcessId]]:
    """Return the guard and supervisor of each replica, by rank."""
    by_rank = {}
    for path in folder.glob("guard-*.json"):
        named = {name: ProcessId.parse(str(text)) for name, text in read_json(path).items() if text != "None"}
        by_rank[int(path.stem.rpartition("-")[2])] = named
    return dict(sorted(by_rank.items()))


def _user_processes(folder: Path) -> dict[int, ProcessId]:
    """Return the user's processes that ended without a record, by rank."""
    job = JobDocument.read(folder / "job.json")
    task = fold(JournalReader(Path(job.paths.run_dir) / "journal", prefix=f"{job.task}.").poll()).task(job.task)
    newest = task.newest_attempt
    if newest is None or newest.job != job.job:
        return {}
    started = {rank: each for rank, each in newest.replicas.items() if each.process and each.end is None}
    processes = {rank: ProcessId.parse(each.process) for rank, each in sorted(started.items())}
    return {rank: process for rank, process in processes.items() if not is_alive(process)}


def _sentence(by_rank: dict[int, dict[str, ProcessId]]) -> str:
    """Return `killed from outside: guard 12, supervisor 13 and ...`; for large gangs, only the first replicas."""
    parts = []
    for rank, named in list(by_rank.items())[:_MAX_NAMED]:
        of = f" of replica {rank}" if len(by_rank) > 1 else ""
        words = [f"{name} {process.pid}" for name, process in named.items()]
        parts.append((", ".join(words[:-1]) + " and " if words[1:] else "") + words[-1] + of)
    rest = f"; and those of {len(by_rank) - _MAX_NAMED} more replicas" if len(by_rank) > _MAX_NAMED else ""
    return f"killed from outside: {'; '.join(parts)}{rest}"
