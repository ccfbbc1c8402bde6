"""The Slurm backend: a job is a chain of Slurm jobs (links).

Windlass queues the first, and each link queues the next.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.backends.protocol import JobState, Observation, Rendered, Submission
from windlass.backends.site_shell import SiteShell, shell_for
from windlass.backends.slurm.array import links_of, submit_many
from windlass.backends.slurm.client import Past, SlurmClient
from windlass.backends.slurm.explain import HELD, can_start, why_it_waits, why_suspended
from windlass.backends.slurm.observe import Look, forget, how_ended, look, signs_of_life
from windlass.backends.slurm.render import SCRIPT, SETUP_NOTE, first_argv, job_script, site_folder, submit_argv
from windlass.backends.slurm.submit import Push, submit
from windlass.backends.slurm.version import OLDEST, SlurmVersion
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.record.causes import Cause
from windlass.sites.profile import Profile
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.job_listing import JobEnd, SlurmJob, mark_of

__all__ = ["SlurmBackend"]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_KILL_AFTER_S = 5.0
_GIVE_UP_AFTER_S = 120.0
_UNQUEUE_S = 20.0


class SlurmBackend:
    """Backend that queues jobs at a Slurm site.

    Args:
        shell: the site's shell; by default the one that the profile describes.
        push: copies a job's folder to a site with separate storage, before anything is queued.
        patience_s: total time limit of queries about jobs; commands that change jobs have separate limits.
    """

    name = "slurm"

    def __init__(
        self,
        profile: Profile,
        *,
        shell: SiteShell | None = None,
        push: Push | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._profile = profile
        self._commands = SlurmClient(profile, shell or shell_for(profile), patience_s=patience_s)
        self._push = push

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return the rendered job: job.json, the batch script, and the command line that queues link 1."""
        site, mark = site_folder(document, folder), mark_of(document.token)
        queue = document.queue
        if not queue.name:
            queue = dataclasses.replace(queue, name=f"{document.run}.{document.task}.{document.job}.{mark[:6]}")
        chain = dataclasses.replace(
            document.chain, scheduler="slurm", mark=mark, bin=document.chain.bin or self._profile.scheduler.bin
        )
        document = dataclasses.replace(document, queue=queue, chain=chain)
        chain = dataclasses.replace(chain, submit=submit_argv(document, site, mark, "${link}"))
        document = dataclasses.replace(document, chain=chain)
        version = SlurmVersion.parse(self._profile.scheduler.version) or OLDEST
        files = {
            "job.json": json.dumps(document.to_data(), indent=1, sort_keys=True) + "\n",
            SCRIPT: job_script(document, site, archive, version),
        }
        return Rendered(folder=folder, files=files, argv=first_argv(document, site, mark), token=document.token)

    def submit(self, rendered: Rendered) -> Submission:
        """Queue link 1 and as many later links as planned; if a reply is lost, the job is found again."""
        return submit(self._commands, rendered, self._push)

    def submit_many(self, rendered: Sequence[Rendered]) -> Sequence[Submission]:
        """Queue jobs of the same shape as tasks of a job array, and other jobs one by one.

        Each is found by its mark.
        """
        return submit_many(self._commands, rendered, self._push)

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Return the states of jobs, with one query of the queue, and one of accounting for jobs that have left it."""
        asked_at = time.monotonic()
        try:
            seen = look(self._commands)
            if any(not _living(seen, job) for job in jobs):
                seen = look(self._commands, not_before=asked_at)
            gone = [job for job in jobs if not _links(seen, job)]
            past = self._past(gone)
            return {job.backend_id: self._observation(job, _links(seen, job), past.get(job.backend_id)) for job in jobs}
        except (UnreachableError, PreconditionError) as error:
            return {job.backend_id: Observation(state=JobState.UNKNOWN, detail=error.message) for job in jobs}

    def cancel(self, job: Submission) -> None:
        """End all links, waiting ones first, with SIGTERM and then SIGKILL. Blocks until none is left."""
        began_at, pause_s = time.monotonic(), _FIRST_PAUSE_S
        told: dict[str, float] = {}
        kill_after_s = self._profile.scheduler.kill_wait + _KILL_AFTER_S
        while True:
            forget(self._commands)
            now = time.monotonic()
            living = sorted(_living(look(self._commands, not_before=now), job), key=lambda link: not link.is_waiting)
            if not living:
                return
            if now - began_at > kill_after_s + _GIVE_UP_AFTER_S:
                raise UnreachableError(
                    f"Slurm has not ended {', '.join(link.id for link in living)} yet",
                    hint="one of its nodes may be down; try again later",
                    code="slurm-slow",
                )
            self._end(living, told, now, kill_after_s)
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    def unqueue(self, job: Submission) -> None:
        """See `CanUnqueue.unqueue`."""
        give_up_at, pause_s = time.monotonic() + _UNQUEUE_S, _FIRST_PAUSE_S
        while True:
            forget(self._commands)
            seen = look(self._commands, not_before=time.monotonic())
            waiting = [link.id for link in _living(seen, job) if link.is_waiting]
            if not waiting:
                return
            if time.monotonic() > give_up_at:
                raise UnreachableError(
                    f"Slurm has not cancelled {', '.join(waiting)} yet",
                    hint="try again later",
                    code="slurm-slow",
                )
            self._commands.cancel(waiting)  # sent each time: a controller that crashes may forget the request
            time.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    def let_go(self, job: Submission) -> None:
        """See `CanHold.let_go`."""
        waiting = [link.id for link in _living(look(self._commands), job) if link.is_waiting and link.link == 1]
        if waiting:
            self._commands.release(waiting)
            forget(self._commands)

    def explain(self, job: Submission) -> str:
        """Return why the first waiting link waits, and when Slurm expects it to start; empty while a link runs.

        Raises:
            UnreachableError: Slurm does not respond.
        """
        living = _living(look(self._commands), job)
        if not living or any(not link.is_waiting for link in living):
            return ""
        return _why(living[0], job)

    def _end(self, living: Sequence[SlurmJob], told: dict[str, float], now: float, kill_after_s: float) -> None:
        new = [link.id for link in living if link.id not in told]
        stubborn = [link.id for link in living if now - told.get(link.id, now) > kill_after_s]
        if new:
            self._commands.cancel(new)
            told.update(dict.fromkeys(new, now))
        if stubborn:
            self._commands.cancel(stubborn, "KILL")
            told.update(dict.fromkeys(stubborn, now))

    def _observation(self, job: Submission, links: Sequence[SlurmJob], past: Past | None) -> Observation:
        living = [link for link in links if not link.is_over]
        if living:
            return _alive(job, living)
        return self._gone(job, links, past)

    def _gone(self, job: Submission, links: Sequence[SlurmJob], past: Past | None) -> Observation:
        note = job.folder / SETUP_NOTE
        if note.exists():
            return Observation(state=JobState.GONE, detail=note.read_text().strip(), cause=str(Cause.SETUP_FAILED))
        have_run = [link for link in links if link.nodes] or links  # those that never ran were cancelled at the end
        last = have_run[-1] if have_run else past
        ended = how_ended(self._commands, last, job.folder) if last is not None else None
        if last is not None and ended is not None and ended.cause is Cause.NODE_UNHEALTHY and _is_cancelled(last):
            return Observation(state=JobState.GONE, detail=ended.message, cause=str(ended.cause))  # a node rejected it
        return _gone(
            ended, job, signs_of_life(self._commands.shell, _document(job), job.folder, is_known=ended is not None)
        )

    def _past(self, jobs: Sequence[Submission]) -> Mapping[str, Past]:
        """Return the accounting records of jobs that the controller has forgotten, by backend id."""
        names = {_document(job).queue.name: job.backend_id for job in jobs}
        found = self._commands.past(sorted(names)) if names else []
        return {names[job.name]: job for job in found if job.name in names and job.has_run}


def _links(seen: Look, job: Submission) -> Sequence[SlurmJob]:
    return links_of(seen, job, job.locator.partition("#")[2] or mark_of(_document(job).token))


def _living(seen: Look, job: Submission) -> list[SlurmJob]:
    return [link for link in _links(seen, job) if not link.is_over]


def _alive(job: Submission, living: Sequence[SlurmJob]) -> Observation:
    running = [link for link in living if not link.is_waiting]
    waiting = tuple(link.id for link in living if link.is_waiting)
    if running:
        words = f"link {running[0].link} is {running[0].state.lower()} on {running[0].nodes or 'its nodes'}"
        return Observation(state=JobState.RUNNING, detail=words, waiting=waiting, suspended=why_suspended(running[0]))
    words = f"link {living[0].link} waits: {_why(living[0], job)}"
    cause = "" if can_start(living[0]) else str(Cause.UNSCHEDULABLE)
    return Observation(state=JobState.QUEUED, detail=words, cause=cause, waiting=waiting)


def _why(link: SlurmJob, job: Submission) -> str:
    """Return why a link waits; link 1 of a job that windlass holds waits for other tasks."""
    document = _document(job) if link.reason == HELD and link.link == 1 else None
    if document is None or not document.queue.hold:
        return why_it_waits(link)
    rule = document.settings.evaluates
    return why_it_waits(link, document.settings.after if rule is None else (rule.of,), is_evaluation=rule is not None)


def _is_cancelled(job: SlurmJob | Past) -> bool:
    return job.state.startswith("CANCELLED")


def _gone(ended: JobEnd | None, job: Submission, signs: str) -> Observation:
    if ended is None:
        return Observation(state=JobState.GONE, detail="Slurm no longer has it", signs=signs)
    cause = "" if ended.cause is Cause.UNKNOWN else str(ended.cause)
    words = ended.message
    if ended.cause is Cause.NODE_UNHEALTHY:  # the usual reason: Slurm could not open the job's output there
        words += f"; check that all nodes see {site_folder(_document(job), job.folder)}"
    return Observation(state=JobState.GONE, detail=words, cause=cause, signs=signs)


def _document(job: Submission) -> JobDocument:
    return JobDocument.read(job.folder / "job.json")
