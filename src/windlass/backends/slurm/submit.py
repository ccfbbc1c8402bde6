"""Submission of a job, which happens exactly once even if a process dies in between.

The job's folder is on disk before the first sbatch. A client that finds it without a result (after a crash, on another
machine) searches for a job with our mark: in the queue, in the job's folder (where a started link writes its id), and
in accounting. Only if there is none does it submit again. A duplicate that appears later finds `link-1.json` taken and
exits before it has done anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePath

from windlass.backends.protocol import Rendered, Submission
from windlass.backends.slurm.client import SlurmClient
from windlass.backends.slurm.observe import forget
from windlass.backends.slurm.render import SCRIPT, first_argv, site_folder, submit_argv
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.core.files import lock, write_atomic, write_json
from windlass.core.json_text import read_json
from windlass.supervise.gang.incarnation import link_path
from windlass.supervise.job import JobDocument

__all__ = [
    "Push",
    "known_submission",
    "note_submission",
    "submission_of",
    "submit",
    "was_written",
    "write_files",
]

Push = Callable[[Path, PurePath], None]
"""Copies a local job folder to a folder at the site. Blocks; raises UnreachableError; idempotent."""

_SUBMITTED = "submitted.json"
_LOCK = "submit.lock"
_LOCK_S = 300.0


def submission_of(profile_name: str, number: str, mark: str, folder: Path) -> Submission:
    """Return a job's submission: its id is the first link's id in Slurm, and all links are found by the mark."""
    return Submission(backend_id=number, locator=f"slurm://{profile_name}/{number}#{mark}", folder=folder)


def submit(commands: SlurmClient, rendered: Rendered, push: Push | None) -> Submission:
    """See `Backend.submit`."""
    folder = rendered.folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / _LOCK, timeout_s=_LOCK_S):
        known = known_submission(folder)
        if known is not None:
            return known
        is_new = not was_written(folder)
        document = write_files(rendered)
        links, goes_on = ({}, True) if is_new else _find(commands, document, folder)
        if not links:
            commands.check_guard()
        if push is not None:
            push(folder, site_folder(document, folder))
        links = _queue(commands, document, folder, links) if goes_on else links
        found = submission_of(commands.profile.name, links[min(links)], document.chain.mark, folder)
        note_submission(found)
        forget(commands)
        return found


def was_written(folder: Path) -> bool:
    """Return True if this job may already have been queued, by an earlier call or another machine."""
    return folder.exists() and any(entry.name != _LOCK for entry in folder.iterdir())


def write_files(rendered: Rendered) -> JobDocument:
    """Write a rendered job to its folder; return the job document."""
    rendered.folder.mkdir(parents=True, exist_ok=True)
    for name, content in rendered.files.items():
        write_atomic(rendered.folder / name, content.encode(), syncs_folder=name == SCRIPT)
    return JobDocument.read(rendered.folder / "job.json")


def note_submission(job: Submission) -> None:
    """Record that a job is queued."""
    write_json(job.folder / _SUBMITTED, {"id": job.backend_id, "locator": job.locator})


def known_submission(folder: Path) -> Submission | None:
    """Return the job that an earlier call queued, or None; raises PreconditionError if its record is damaged."""
    if not (folder / _SUBMITTED).exists():
        return None
    try:
        said = read_json(folder / _SUBMITTED)
        assert isinstance(said, dict)
        return Submission(backend_id=said["id"], locator=said["locator"], folder=folder)
    except (ValueError, KeyError, AssertionError) as error:
        raise PreconditionError(f"{folder / _SUBMITTED} is damaged: {error}", code="plan-broken") from error


def _queue(commands: SlurmClient, document: JobDocument, folder: Path, found: Mapping[int, str]) -> dict[int, str]:
    """Queue the missing links; return all links by number."""
    links = dict(found)
    try:
        for number in range(1, max(1, document.queue.num_queued) + 1):
            if number not in links:
                links[number] = _queue_one(commands, document, folder, number)
    except PreconditionError:
        if links and document.chain.can_submit:
            return links  # running links queue the missing ones, or report why they cannot
        if links:
            commands.cancel(list(links.values()))
        raise
    except UnreachableError:
        if links and document.chain.can_submit:
            return links
        raise
    return links


def _queue_one(commands: SlurmClient, document: JobDocument, folder: Path, number: int) -> str:
    there, mark = site_folder(document, folder), document.chain.mark
    argv = first_argv(document, there, mark) if number == 1 else submit_argv(document, there, mark, number)
    return commands.submit(argv, document.queue, document.num_replicas)


def _find(commands: SlurmClient, document: JobDocument, folder: Path) -> tuple[dict[int, str], bool]:
    """Return the links that an earlier call queued, and whether the chain is alive or never began."""
    name, mark = document.queue.name, document.chain.mark
    ours = [job for job in commands.jobs(name) if job.mark == mark and not job.was_refused]
    if ours:
        return {job.link: job.id for job in reversed(ours)}, not all(job.is_over for job in ours)
    begun = link_path(folder, 1)
    if begun.exists():
        return {1: str(read_json(begun)["id"])}, False
    past = [job.id for job in commands.past([name]) if job.has_run or job.how_ended(has_begun=False) is None]
    return ({1: past[0]}, False) if past else ({}, True)
