"""Page that describes a Beaker experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from windlass.backends.beaker.values import BeakerExperiment, BeakerJob
from windlass.cli.screen import table

__all__ = ["as_data", "page"]


def page(seen: BeakerExperiment, jobs: Sequence[BeakerJob]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield f"{seen.name}  {seen.status.replace('_', ' ')}  {seen.id}"
    if seen.description:
        yield seen.description
    if seen.canceled_for:
        yield f"cancelled: {seen.canceled_for}"
    rows = [
        (
            f"{job.task}/{job.rank}" if job.size > 1 else job.task,
            str(job.attempt),
            job.status.replace("_", " "),
            _moment(job.started_ns),
            _how(job),
            job.id,
        )
        for job in jobs
    ]
    yield ""
    yield from table(("replica", "attempt", "state", "started", "end", "job"), rows)


def as_data(seen: BeakerExperiment, jobs: Sequence[BeakerJob]) -> Mapping[str, object]:
    """Return the experiment and its jobs for `--json`."""
    return {"experiment": {**asdict(seen), "tasks": list(seen.tasks)}, "jobs": [asdict(job) for job in jobs]}


def _how(job: BeakerJob) -> str:
    if job.canceled_code:
        return job.canceled_code.replace("_", " ")
    return "" if job.exit_code is None else f"exit {job.exit_code}"


def _moment(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M") if at_ns else ""
