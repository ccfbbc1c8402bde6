"""Starts of a job's replicas by a scheduler, and the file that ensures that only one scheduler's job runs a link.

A scheduler may start the same job again (a requeue), and a submission whose reply was lost may exist twice. So every
start has a unique name, which is also the folder for the files of its guards. The first job that begins as link n writes
its id into `link-<n>.json`; any other job for that link exits without doing anything.

A controller that lost its newest state does not count a restart of a job that it had started, and reuses ids, even for
a later link of the same job. So the batch script gives each start a unique mark, and a start takes the first name that
no other start has; the id in such a name does not identify earlier links.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.files import write_new
from windlass.core.json_text import read_json

__all__ = ["LOCAL", "OUTPUT", "START_MARK", "Incarnation", "as_written", "enter_link", "link_path"]

START_MARK = "WINDLASS_START"
"""Variable with the unique mark of a batch script's start."""

OUTPUT = "WINDLASS_BATCH_OUTPUT"
"""Variable with the path of a batch script's output file, if it is outside the job's folder."""


@dataclass(frozen=True)
class Incarnation:
    """Start of a job's replicas, by a scheduler or on one machine.

    Attributes:
        name: `<scheduler's id>.<restart>`, unique; empty if the job is a process tree on one machine.
        link: number of the link that was started, from 1.
        job_id: the scheduler's id; empty as above.
        began_at: wall time of the start.
        ends_at: wall time at which the scheduler ends it; 0 if unknown.
        skew_s: difference between the clocks of this machine and of the first replica's when both began.
        mark: mark of the batch script's start; empty if the scheduler distinguishes starts.
        is_unknown_restart: whether the scheduler forgot that it had already given this job's id to a start.
        output: file with the output of the batch script, srun's included; empty if none.
        output_begin: size of that file when the start began, in bytes.
    """

    name: str = ""
    link: int = 1
    job_id: str = ""
    began_at: float = 0.0
    ends_at: float = 0.0
    skew_s: float = 0.0
    mark: str = ""
    is_unknown_restart: bool = False
    output: str = ""
    output_begin: int = 0

    def folder(self, job_folder: Path) -> Path:
        """Return the folder for the files of this start's guards and heartbeats."""
        return job_folder / self.name if self.name else job_folder


LOCAL = Incarnation()


def link_path(job_folder: Path, link: int) -> Path:
    """Return the path of the file that names a link's job in the scheduler; it is written when the link begins."""
    return job_folder / f"link-{link}.json"


def enter_link(job_folder: Path, link: int, environ: Mapping[str, str]) -> Incarnation | None:
    """Enter this start of a Slurm job as a link; None if another job already runs that link. Idempotent.

    Every replica calls it, and the first caller writes the file, whatever its rank.
    """
    job_id = environ["SLURM_JOB_ID"]
    now = time.time()
    path = link_path(job_folder, link)
    write_new(path, json.dumps({"id": job_id, "host": os.uname().nodename, "at": now}).encode())
    if read_json(path)["id"] != job_id:
        return None
    number = int(environ.get("SLURM_RESTART_COUNT", "0"))
    output = Path(environ.get(OUTPUT) or job_folder / f"slurm-{job_id}.out")
    found = Incarnation(
        name=f"{job_id}.{number}",
        link=link,
        job_id=job_id,
        began_at=now,
        ends_at=float(environ.get("SLURM_JOB_END_TIME", "0")),
        mark=environ.get(START_MARK, ""),
        output=str(output),
        output_begin=output.stat().st_size if output.exists() else 0,
    )
    while True:
        found.folder(job_folder).mkdir(mode=0o700, exist_ok=True)
        written = as_written(found, job_folder)
        if written.mark == found.mark:
            return written
        number += 1
        found = replace(found, name=f"{job_id}.{number}", is_unknown_restart=True)


def as_written(found: Incarnation, job_folder: Path) -> Incarnation:
    """Return this start as its first replica recorded it, so that all replicas count time from the same moment."""
    path = found.folder(job_folder) / "incarnation.json"
    write_new(path, json.dumps(asdict(found)).encode())
    first = Incarnation(**read_json(path))
    return replace(first, skew_s=found.began_at - first.began_at)
