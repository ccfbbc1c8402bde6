"""Leases on a machine's resources, shared by one user's runs through a locked table, without a daemon.

The leader of a task requests what the whole task needs on this machine, first come, first served. Waiting requests are
in the table too, so that small ones do not overtake a big one forever. An entry belongs to a job and is valid as long as
any guard or supervisor of the job is alive; another leader of the job takes it over. Each access drops entries of dead
jobs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from windlass.core.files import lock, write_json
from windlass.core.json_text import read_json
from windlass.core.process import ProcessId, identify, is_alive
from windlass.supervise.job import Lease

__all__ = ["LeasableResources", "acquire", "holder_of_this_process", "local_resources", "release"]


class LeasableResources:
    """Resources of a machine: its GPU ids, CPU count and memory.

    Args:
        gpus: ids in the format of `CUDA_VISIBLE_DEVICES`.
    """

    def __init__(self, gpus: tuple[str, ...], cpus: float, memory_bytes: int) -> None:
        self.gpus = gpus
        self.cpus = cpus
        self.memory_bytes = memory_bytes


def local_resources() -> LeasableResources:
    """Return this machine's resources; `WINDLASS_GPUS=0,1` overrides the detected GPUs."""
    stated = os.environ.get("WINDLASS_GPUS")
    if stated is not None:
        gpus = tuple(part for part in stated.split(",") if part)
    else:
        names = os.listdir("/proc/driver/nvidia/gpus") if os.path.isdir("/proc/driver/nvidia/gpus") else []
        gpus = tuple(str(number) for number in range(len(names)))
    cpus = float(len(os.sched_getaffinity(0)))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return LeasableResources(gpus, cpus, memory)


def acquire(
    lease: Lease, job_folder: Path, holder: str, label: str, present: LeasableResources
) -> tuple[tuple[str, ...], str]:
    """Acquire a lease, or queue for it; idempotent for a job.

    Args:
        job_folder: folder of the job that holds the lease; it lists the job's guards and supervisors.
        holder: identity of the requesting process (core.process), until it is listed there.
        label: run and task, for messages in other runs.

    Returns:
        (GPU ids, reason): the reason is empty if the lease was granted.
    """
    folder = Path(lease.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "machine.lock"):
        entries = _living(_load(folder))
        mine = next((entry for entry in entries if entry["job"] == str(job_folder)), None)
        if mine is None:
            mine = {
                "job": str(job_folder),
                "holder": holder,
                "label": label,
                "gpus": lease.gpus,
                "cpus": lease.cpus,
                "memory": lease.memory_bytes,
                "given": None,
            }
            entries.append(mine)
        mine["holder"] = holder
        reason = _give(mine, entries, present) if mine["given"] is None else ""
        write_json(folder / "machine.json", entries, is_durable=False)
    return tuple(mine["given"] or ()), reason


def release(lease: Lease, job_folder: Path) -> None:
    """Release all resources that a job holds; idempotent."""
    folder = Path(lease.folder)
    with lock(folder / "machine.lock"):
        entries = [entry for entry in _living(_load(folder)) if entry["job"] != str(job_folder)]
        write_json(folder / "machine.json", entries, is_durable=False)


def _give(mine: dict[str, Any], entries: list[dict[str, Any]], present: LeasableResources) -> str:
    given = [entry for entry in entries if entry["given"] is not None]
    ahead = [entry for entry in entries[: entries.index(mine)] if entry["given"] is None]
    taken = {gpu for entry in given for gpu in entry["given"]}
    free_gpus = [gpu for gpu in present.gpus if gpu not in taken]
    wanted = [
        ("GPU", mine["gpus"], len(free_gpus), len(present.gpus)),
        ("CPU", mine["cpus"], present.cpus - sum(entry["cpus"] for entry in given), present.cpus),
        (
            "byte of memory",
            mine["memory"],
            present.memory_bytes - sum(e["memory"] for e in given),
            present.memory_bytes,
        ),
    ]
    for what, need, free, total in wanted:
        if need and need > free:
            holders = ", ".join(sorted({entry["label"] for entry in given}))
            return f"waits for {need:g} {what}s, {max(0, free):g} of {total:g} free" + (
                f" (held by {holders})" if holders else ""
            )
    if ahead and any(need for _, need, _, _ in wanted):
        return f"waits in line behind {ahead[0]['label']}"
    mine["given"] = free_gpus[: mine["gpus"]]
    return ""


def _load(folder: Path) -> list[dict[str, Any]]:
    try:
        entries = read_json(folder / "machine.json")
    except (FileNotFoundError, ValueError):
        return []
    return entries if isinstance(entries, list) else []


def _living(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if any(is_alive(process) for process in _processes(entry))]


def _processes(entry: dict[str, Any]) -> list[ProcessId]:
    """Return the processes that may hold an entry: the requester, and the guards and supervisors of its job."""
    found = [entry["holder"]]
    for path in Path(entry["job"]).glob("guard-*.json"):
        with contextlib.suppress(OSError, ValueError):
            found.extend(read_json(path).values())
    return [ProcessId.parse(text) for text in found if text != "None"]


def holder_of_this_process(guard_pid: int) -> str:
    """Return the identity of the process that holds a replica's leases: its guard, which outlives supervisors."""
    found = identify(guard_pid) or identify(os.getpid())
    return str(found)
