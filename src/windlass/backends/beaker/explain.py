"""Reasons why an experiment does not run yet, as the scheduler reports them, grouped by replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.backends.beaker.values import BeakerEvent, BeakerJob, BeakerWorkspace

__all__ = ["reasons_of", "slots_in_use"]


def reasons_of(
    jobs: Sequence[BeakerJob], events: Mapping[str, Sequence[BeakerEvent]], slots: str = ""
) -> tuple[str, ...]:
    """Return a sentence about each reason.

    Args:
        jobs: the latest job of each replica.
        events: by job, of those that have not started, oldest first.
        slots: see `slots_in_use`; added for replicas that are not scheduled if the scheduler does not mention slots.
    """
    alike: dict[str, list[BeakerJob]] = {}
    for job in jobs:
        if job.id in events:
            alike.setdefault(_reason(job, events[job.id], slots), []).append(job)
    return tuple(f"{_who(members, len(jobs))} {words}" for words, members in alike.items())


def slots_in_use(workspace: BeakerWorkspace) -> str:
    """Describe the limits that a workspace has reached; empty if there are none. A slot is a GPU."""
    reached = [
        f"{workspace.slots_used.get(kind, 0)} of {limit} {kind} slots"
        for kind, limit in workspace.slot_limits.items()
        if limit and workspace.slots_used.get(kind, 0) >= limit
    ]
    return f"workspace {workspace.name} uses {' and '.join(reached)}" if reached else ""


def _reason(job: BeakerJob, events: Sequence[BeakerEvent], slots: str) -> str:
    said = _said(job, events)
    if not job.scheduled_ns:
        if slots and "slot" not in said:
            said = f"{said}; {slots}" if said else slots
        return f"not scheduled: {said or 'Beaker has not considered it yet'}"
    if not job.ready_ns:
        return f"scheduled and not ready: {said or 'its image and data are being fetched'}"
    return "ready, waiting for the other replicas" if job.size > 1 else "ready and about to start"


def _said(job: BeakerJob, events: Sequence[BeakerEvent]) -> str:
    """Return the newest message from the scheduler or the machine."""
    told = [event.message for event in events if event.message]
    return " ".join((told[-1] if told else job.scheduling or job.message).split())


def _who(members: Sequence[BeakerJob], num_jobs: int) -> str:
    if num_jobs == 1:
        return "it is"
    if any(job.size < num_jobs for job in members):  # of several tasks
        names = [f"{job.task}/{job.rank}" if job.size > 1 else job.task for job in members]
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
    ranks = sorted(job.rank for job in members)
    if len(ranks) == 1:
        return f"replica {ranks[0]} is"
    runs = _runs(ranks)
    return "replicas " + ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs) + " are"


def _runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranks as (first, last) ranges of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs
