"""Submission of many jobs with the same shape as one job array, in which each task is the first link of one job.

At first all tasks of an array have the same comment, the array's mark; a task sets its job's name and mark when it
starts. So a waiting job is identified by its number in the array, and a started one by its mark, like any other job.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from windlass.backends.protocol import Rendered, Submission
from windlass.backends.slurm.client import SlurmClient
from windlass.backends.slurm.observe import Look, forget
from windlass.backends.slurm.render import (
    ARRAY_LIST,
    ARRAY_SCRIPT,
    SCRIPT,
    archive_of,
    array_script,
    first_argv,
    site_folder,
)
from windlass.backends.slurm.submit import (
    Push,
    known_submission,
    note_submission,
    submission_of,
    submit,
    was_written,
    write_files,
)
from windlass.core.files import lock, write_atomic
from windlass.core.json_text import decode_json
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.job_listing import SlurmJob
from windlass.supervise.slurm.scheduler import mark_of

__all__ = ["links_of", "submit_many"]

_MOST_TASKS = 1000
"""Slurm's own limit is 1001 (slurm.conf(5), MaxArraySize), and indices stay below it."""

_LOCK_S = 300.0


def submit_many(commands: SlurmClient, rendered: Sequence[Rendered], push: Push | None) -> list[Submission]:
    """Queue jobs, grouped by shape; return their submissions in the given order."""
    found: dict[int, Submission] = {}
    shapes: dict[tuple[str, PurePath], list[int]] = {}
    for index, job in enumerate(rendered):
        shapes.setdefault(_shape(job), []).append(index)
    for members in shapes.values():
        for begin in range(0, len(members), _MOST_TASKS):
            some = members[begin : begin + _MOST_TASKS]
            if len(some) == 1 or not _said(rendered[some[0]])["chain"]["can_submit"]:
                found.update({index: submit(commands, rendered[index], push) for index in some})
            else:
                jobs = _submit_array(commands, [rendered[index] for index in some], push)
                found.update(zip(some, jobs, strict=True))
    return [found[index] for index in range(len(rendered))]


def links_of(seen: Look, job: Submission, marks: str) -> Sequence[SlurmJob]:
    """Return those of the listed Slurm jobs that are links of one job.

    Args:
        marks: the job's mark; `<mark>.<array's mark>` if it was queued in an array and may not have started.
    """
    mark, _, group = marks.partition(".")
    waiting = [task for task in seen.links(group) if task.id == job.backend_id] if group else []
    return [*(dataclasses.replace(task, link=1) for task in waiting), *seen.links(mark)]


def _said(job: Rendered) -> dict[str, Any]:
    """Return the content of a job's job.json, which may not be on disk yet."""
    said: dict[str, Any] = decode_json(job.files["job.json"])
    return said


def _shape(job: Rendered) -> tuple[str, PurePath]:
    said = _said(job)
    request = [said["shape"]["nodes"], {**said["queue"], "name": ""}]
    return json.dumps(request, sort_keys=True), archive_of(job.files[SCRIPT])


def _submit_array(commands: SlurmClient, rendered: Sequence[Rendered], push: Push | None) -> list[Submission]:
    folders = [job.folder for job in rendered]
    first, group = folders[0], mark_of("".join(job.token for job in rendered))
    first.mkdir(parents=True, exist_ok=True)
    with lock(first / "submit.lock", timeout_s=_LOCK_S):
        known = [known_submission(folder) for folder in folders]
        if all(job is not None for job in known):
            return [job for job in known if job is not None]
        is_new = not any(was_written(folder) for folder in folders)
        documents = [write_files(job) for job in rendered]
        there = site_folder(documents[0], first)
        _write_array(commands, folders, documents, there)
        marks = {group, *(document.chain.mark for document in documents)}
        number = "" if is_new else _find(commands, marks)
        if not number:
            commands.check_guard()
        if push is not None:
            for folder, document in zip(folders, documents, strict=True):
                push(folder, site_folder(document, folder))
        if not number:
            argv = first_argv(documents[0], there, group, is_array=True)
            number = commands.submit(argv, documents[0].queue, documents[0].num_replicas)
        jobs = [
            submission_of(commands.profile.name, f"{number}_{task}", f"{document.chain.mark}.{group}", folder)
            for task, (folder, document) in enumerate(zip(folders, documents, strict=True), start=1)
        ]
        for job in jobs:
            note_submission(job)
        forget(commands)
        return jobs


def _write_array(
    commands: SlurmClient, folders: Sequence[Path], documents: Sequence[JobDocument], there: PurePath
) -> None:
    lines = [
        f"{document.queue.name} {document.chain.mark} {site_folder(document, folder)}\n"
        for document, folder in zip(documents, folders, strict=True)
    ]
    name = f"{documents[0].queue.name}.array"
    archive = archive_of((folders[0] / SCRIPT).read_text())
    script = array_script(documents[0], name, there, len(documents), archive, commands.version)
    write_atomic(folders[0] / ARRAY_LIST, "".join(lines).encode())
    write_atomic(folders[0] / ARRAY_SCRIPT, script.encode())


def _find(commands: SlurmClient, marks: set[str]) -> str:
    """Return the id of the array that an earlier call queued, found by any of its tasks; empty if there is none.

    If all its tasks have ended and Slurm has forgotten them, a second array is queued, whose tasks exit immediately.
    """
    tasks = (job for job in commands.jobs() if job.mark in marks and "_" in job.id and not job.was_refused)
    return next((task.id.partition("_")[0] for task in tasks), "")
