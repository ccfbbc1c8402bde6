"""The Beaker backend: a job is an experiment with one task, whose replicas are the nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath

from windlass.backends.beaker.observe import observation_of_end, observation_of_open
from windlass.backends.beaker.render import experiment_name, experiment_spec
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.submit import submit
from windlass.backends.beaker.values import BeakerExperiment
from windlass.backends.protocol import JobState, Observation, Rendered, Submission
from windlass.core.errors import (
    AccessError,
    InternalError,
    NotFoundError,
    PreconditionError,
    UnreachableError,
    UsageError,
)
from windlass.sites.profile import Profile
from windlass.supervise.job import JobDocument

__all__ = ["SPEC_FILE", "BeakerBackend", "service_of"]

SPEC_FILE = "beaker.json"
"""The experiment's spec, beside job.json."""

Push = Callable[[Path, PurePath], None]
"""See `windlass.backends.slurm.submit.Push`."""


def service_of(profile: Profile) -> BeakerService:
    """Return the Beaker service that a site's profile describes; makes no call."""
    config = profile.beaker.config
    return BeakerService(environ={**os.environ, "BEAKER_CONFIG": config} if config else None)


class BeakerBackend:
    """Backend that creates experiments at a Beaker site.

    Args:
        push: copies a job's folder to where its jobs read it, before the experiment is created.
        service: by default the one that the profile describes.
    """

    name = "beaker"

    def __init__(self, profile: Profile, *, push: Push | None = None, service: BeakerService | None = None) -> None:
        self._profile = profile
        self._service = service or service_of(profile)
        self._push = push
        self._ends: dict[str, Observation] = {}

    def render(self, document: JobDocument, folder: Path, archive: Path) -> Rendered:
        """Return the rendered job: job.json, the spec, and the experiment's name."""
        if not document.beaker.workspace:
            raise InternalError(f"job {document.job} of task {document.task} names no Beaker workspace")
        site = PurePath(document.paths.run_dir) / "jobs" / folder.name
        files = {
            "job.json": json.dumps(document.to_data(), indent=1, sort_keys=True) + "\n",
            SPEC_FILE: json.dumps(experiment_spec(document, site, archive), indent=1, sort_keys=True) + "\n",
        }
        argv = ("windlass", "beaker", "submit", SPEC_FILE, f"--workspace={document.beaker.workspace}")
        return Rendered(
            folder=folder, files=files, argv=(*argv, f"--name={experiment_name(document)}"), token=document.token
        )

    def submit(self, rendered: Rendered) -> Submission:
        """Create the experiment exactly once, after checking that its secrets exist."""
        return submit(self._service, rendered, self._push, profile_name=self._profile.name)

    def observe(self, jobs: Sequence[Submission]) -> Mapping[str, Observation]:
        """Return the states of experiments; open ones are fetched in one listing, and each end is fetched only once."""
        found = {job.backend_id: self._ends[job.backend_id] for job in jobs if job.backend_id in self._ends}
        open_jobs = [job for job in jobs if job.backend_id not in found]
        if not open_jobs:
            return found
        try:
            seen = self._service.observe([job.backend_id for job in open_jobs], workspace=self._workspace())
            return found | {job.backend_id: self._observation(job, seen.get(job.backend_id)) for job in open_jobs}
        except (AccessError, NotFoundError, PreconditionError, UnreachableError, UsageError) as error:
            unknown = Observation(state=JobState.UNKNOWN, detail=error.message)
            return found | {job.backend_id: unknown for job in open_jobs}

    def cancel(self, job: Submission) -> None:
        """Cancel the experiment, and wait until Beaker has finalized it. Idempotent."""
        try:
            self._service.cancel(job.backend_id, "by windlass")
        except NotFoundError:
            return  # deleted by a user: nothing of it runs

    def explain(self, job: Submission) -> str:
        """Return why replicas do not run yet, in the scheduler's words; empty if all run.

        Raises:
            UnreachableError: Beaker does not respond.
        """
        try:
            return "; ".join(self._service.why(job.backend_id))
        except NotFoundError:
            return ""  # deleted by a user: it no longer waits

    def _workspace(self) -> str:
        return self._profile.beaker.workspace

    def _observation(self, job: Submission, seen: BeakerExperiment | None) -> Observation:
        if seen is None:
            end = Observation(state=JobState.GONE, detail="Beaker no longer has the experiment")
        elif seen.is_over:
            end = observation_of_end(seen, self._service.jobs(job.backend_id), job.folder)
        else:
            return observation_of_open(seen)
        if end.state is JobState.GONE:
            self._ends[job.backend_id] = end
        return end
