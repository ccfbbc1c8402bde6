"""Experiments: created exactly once even if a reply is lost, observed, and cancelled."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.backends.beaker.connection import BeakerConnection
from windlass.backends.beaker.explain import reasons_of, slots_in_use
from windlass.backends.beaker.render import fresh_name, work_of
from windlass.backends.beaker.values import BeakerEvent, BeakerExperiment, BeakerJob, ExperimentRef
from windlass.config.foreign_text import load_foreign_yaml
from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError

if TYPE_CHECKING:
    from windlass.backends.beaker.client import BeakerClient

__all__ = ["CREATE_S", "Experiments"]

CREATE_S = 300.0
"""Time limit for creating an experiment, including retries and the search after a lost reply."""

_POST_S = 60.0
_MAX_PAGES = 20
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_CANCEL_S = 300.0


class Experiments(BeakerConnection):
    """Part of the service that manages experiments and their jobs."""

    def create(
        self, spec: Mapping[str, Any], *, workspace: str = "", name: str = "", is_mine: bool = False
    ) -> ExperimentRef:
        """Create an experiment exactly once; if a reply is lost, the experiment is found by its name.

        Args:
            spec: sent unchanged.
            workspace: full name; empty means the account's default.
            name: unique among the author's experiments; empty to generate one.
            is_mine: the name identifies the experiment, so an existing one that does the same work is reused.

        Raises:
            PreconditionError: refused (`beaker-refused`), or the name is another experiment's (`already-exists`).
            UnreachableError: it is not known whether it was created; call again with the same name.
        """
        name = name or fresh_name(spec)
        with self.asking(f"creating experiment `{name}`", max(CREATE_S, self.deadline_s)) as client:
            workspace_id = self._workspace_id(client, workspace)
            pause_s = _FIRST_PAUSE_S
            while True:
                made = self._post(client, spec, workspace_id, name, is_mine=is_mine)
                if made:
                    return self._workload(client, made, name)
                is_mine = True  # the reply was lost: the experiment that has the name may be ours
                time.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    def find(self, workspace: str, name: str) -> ExperimentRef | None:
        """Return the user's experiment with this name, or None.

        Args:
            workspace: the one it must be in; empty for any.
        """
        with self.asking(f"looking for experiment `{name}`") as client:
            seen = self._named(client, name)
            if seen is None or (workspace and seen.workspace_id != self._workspace_id(client, workspace)):
                return None
            return self._workload(client, seen.id, name)

    def get(self, experiment: str) -> BeakerExperiment:
        """Return an experiment by its id or `AUTHOR/NAME`; raises NotFoundError."""
        with self.asking(f"looking at experiment {experiment}") as client:
            return _seen(client.workload.get(experiment))

    def spec(self, experiment: str) -> dict[str, Any]:
        """Return the spec of an experiment as Beaker stores it."""
        with self.asking(f"reading the spec of experiment {experiment}") as client:
            return self._spec(client, experiment)

    def observe(self, ids: Sequence[str], *, workspace: str = "") -> Mapping[str, BeakerExperiment]:
        """Return the states of experiments by id, except those unknown to Beaker.

        Several are read from one listing (50 to a page, newest first); those too far back are fetched one by one.
        """
        wanted = list(dict.fromkeys(ids))
        with self.asking(f"reading {len(wanted)} experiments") as client:
            found = self._listed(client, set(wanted), workspace) if len(wanted) > 1 else {}
            for experiment in wanted:
                if experiment not in found:
                    seen = self._maybe(client, experiment)
                    if seen is not None:
                        found[experiment] = seen
        return found

    def jobs(self, experiment: str, *, ranks: Collection[int] = ()) -> tuple[BeakerJob, ...]:
        """Return all jobs of an experiment, including every attempt, sorted by task and oldest first.

        This takes one call per replica.

        Args:
            ranks: return only the jobs of these replicas; empty for all.
        """
        with self.asking(f"listing the jobs of experiment {experiment}") as client:
            return self._jobs(client, experiment, ranks)

    def events(self, job: str) -> tuple[BeakerEvent, ...]:
        """Return the events of a job, oldest first."""
        with self.asking(f"reading the events of job {job}") as client:
            return self._events(client, job)

    def why(self, experiment: str) -> tuple[str, ...]:
        """Return why replicas do not run yet, in the scheduler's words; empty if all run."""
        with self.asking(f"asking why experiment {experiment} waits") as client:
            latest = {job.task_id: job for job in self._jobs(client, experiment)}
            waiting = [job for job in latest.values() if not job.is_over and not job.started_ns]
            events = {job.id: self._events(client, job.id) for job in waiting}
            slots = ""
            if any(not job.scheduled_ns for job in waiting):
                slots = slots_in_use(client.decoding.workspace_of(self._home_of(client, experiment)))
        return reasons_of(tuple(latest.values()), events, slots)

    def cancel(self, experiment: str, reason: str = "", *, waits: bool = True) -> None:
        """Cancel an experiment, and wait until Beaker has finalized it. Idempotent.

        Args:
            reason: added to the description, because Beaker's call takes no reason.

        Raises:
            UnreachableError: it did not end within five minutes (`beaker-unreachable`).
        """
        with self.asking(f"cancelling experiment {experiment}", _CANCEL_S) as client:
            seen = _seen(client.workload.get(experiment))
            if not seen.is_over:
                self._tell_to_end(client, seen, reason)
            pause_s = _FIRST_PAUSE_S
            while waits and not self._is_closed(client, experiment):
                time.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    def _post(
        self, client: BeakerClient, spec: Mapping[str, Any], workspace_id: str, name: str, *, is_mine: bool
    ) -> str:
        """Create the experiment and return its id; empty if the reply was lost and no experiment has the name."""
        try:
            reply = client.experiment.http_request(
                f"workspaces/{workspace_id}/experiments",
                method="POST",
                query={"name": name},
                data=dict(spec),
                exceptions_for_status={409: client.errors.BeakerExperimentConflict(name)},
                timeout=_POST_S,
            )
            return str(reply.json()["id"])
        except client.errors.BeakerExperimentConflict:
            if not is_mine:
                raise
            return self._adopt(client, spec, name)
        except (client.errors.RequestException, KeyError) as error:
            if 400 <= getattr(getattr(error, "response", None), "status_code", 0) < 500:
                raise  # rejected, so the reply was not lost
            seen = self._named(client, name)
            return self._adopt(client, spec, name) if seen is not None else ""

    def _adopt(self, client: BeakerClient, spec: Mapping[str, Any], name: str) -> str:
        """Return the id of the experiment with this name, if it does the same work."""
        seen = self._named(client, name)
        if seen is None:
            hint = "choose another name: --name NAME"
            message = f"the name `{name}` is taken at Beaker by another user's experiment"
            raise PreconditionError(message, hint=hint, code="already-exists")
        if work_of(self._spec(client, seen.id)) != work_of(spec):
            hint = f"choose another name: --name NAME; look at it: windlass beaker show {seen.id}"
            message = f"the name `{name}` is taken at Beaker by experiment {seen.id}, which runs other work"
            raise PreconditionError(message, hint=hint, code="already-exists")
        return seen.id

    def _named(self, client: BeakerClient, name: str) -> BeakerExperiment | None:
        """Return the user's experiment with this name."""
        author = self._id("user", "", lambda: client.user.get().name)
        try:
            return _seen(client.workload.get(f"{author}/{name}"))
        except client.errors.BeakerNotFoundError:
            return None

    def _maybe(self, client: BeakerClient, experiment: str) -> BeakerExperiment | None:
        try:
            return _seen(client.workload.get(experiment))
        except client.errors.BeakerNotFoundError:
            return None

    def _workload(self, client: BeakerClient, experiment: str, name: str) -> ExperimentRef:
        return ExperimentRef(id=experiment, name=name, url=f"{client.config.agent_address}/ex/{experiment}")

    def _spec(self, client: BeakerClient, experiment: str) -> dict[str, Any]:
        import yaml  # lazy: PyYAML costs 25 ms

        messages = client.messages
        request = messages.GetExperimentYamlSpecRequest(
            experiment_id=client.experiment.resolve_experiment_id(experiment)
        )
        text = client.rpc("GetExperimentYamlSpec", request).experiment_spec
        try:
            data = load_foreign_yaml(text, source=f"experiment {experiment}")
        except yaml.YAMLError as error:
            message = f"Beaker's spec of experiment {experiment} is not YAML: {error}"
            raise UnreachableError(message, hint="try again later", code="beaker-unreachable") from error
        return dict(data) if isinstance(data, dict) else {}

    def _listed(self, client: BeakerClient, wanted: set[str], workspace: str) -> dict[str, BeakerExperiment]:
        messages = client.messages
        options = messages.ListWorkloadsRequest.Opts
        request = messages.ListWorkloadsRequest(
            options=options(
                organization_id=self._organization_id(client, workspace),
                workspace_id=self._workspace_id(client, workspace) if workspace else None,
                workload_type=messages.WorkloadType.WORKLOAD_TYPE_EXPERIMENT,
                author_id=None if workspace else self._id("user-id", "", lambda: client.user.get().id),
                sort_clause=options.SortClause(sort_order=messages.SortOrder.SORT_ORDER_DESCENDING, created={}),
                page_size=client.workload.MAX_PAGE_SIZE,
            )
        )
        found: dict[str, BeakerExperiment] = {}
        for number, page in enumerate(client.pages("ListWorkloads", request), start=1):
            found.update({seen.id: seen for seen in map(_seen, page.workloads) if seen.id in wanted})
            if len(found) == len(wanted) or number == _MAX_PAGES:
                break
        return found

    def _jobs(self, client: BeakerClient, experiment: str, ranks: Collection[int] = ()) -> tuple[BeakerJob, ...]:
        messages = client.messages
        options = messages.ListJobsRequest.Opts
        organization = self._organization_id(client)
        found: list[BeakerJob] = []
        for task in client.workload.get(experiment).experiment.tasks:
            if ranks and client.decoding.rank_of(task.system_details) not in (*ranks, None):
                continue
            request = messages.ListJobsRequest(
                options=options(
                    organization_id=organization,
                    task_id=task.id,
                    sort_clause=options.SortClause(sort_order=messages.SortOrder.SORT_ORDER_ASCENDING, created={}),
                    page_size=client.job.MAX_PAGE_SIZE,
                )
            )
            jobs = [job for page in client.pages("ListJobs", request) for job in page.jobs]
            jobs.sort(key=lambda job: job.status.created.ToNanoseconds())
            found += [client.decoding.job_of(job, task.name, number) for number, job in enumerate(jobs, start=1)]
        wanted = (job for job in found if not ranks or job.rank in ranks)
        return tuple(sorted(wanted, key=lambda job: (job.rank, job.task, job.attempt)))

    def _events(self, client: BeakerClient, job: str) -> tuple[BeakerEvent, ...]:
        messages = client.messages
        options = messages.ListSummarizedJobEventsRequest.Opts
        request = messages.ListSummarizedJobEventsRequest(
            options=options(
                job_id=job,
                sort_clause=options.SortClause(
                    sort_order=messages.SortOrder.SORT_ORDER_ASCENDING, latest_occurrence={}
                ),
                page_size=client.job.MAX_PAGE_SIZE,
            )
        )
        pages = client.pages("ListSummarizedJobEvents", request)
        found = [client.decoding.event_of(event) for page in pages for event in page.summarized_job_events]
        return tuple(sorted(found, key=lambda event: event.last_ns))

    def _home_of(self, client: BeakerClient, experiment: str) -> Any:
        """Return the workspace of an experiment, as the client's message object."""
        home = client.workload.get(experiment).experiment.workspace_id
        return client.rpc("GetWorkspace", client.messages.GetWorkspaceRequest(workspace_id=home)).workspace

    def _tell_to_end(self, client: BeakerClient, seen: BeakerExperiment, reason: str) -> None:
        messages = client.messages
        if reason and reason not in seen.description:
            words = f"{seen.description} [cancelled: {reason}]".strip()
            change = messages.UpdateWorkloadRequest(workload_id=seen.id, description=words)
            client.rpc("UpdateWorkload", change, is_idempotent=True)
        request = messages.CancelWorkloadsRequest(workload_ids=[seen.id])
        client.rpc("CancelWorkloads", request, is_idempotent=True)

    def _is_closed(self, client: BeakerClient, experiment: str) -> bool:
        if not _seen(client.workload.get(experiment)).is_over:
            return False
        return all(job.is_over for job in self._jobs(client, experiment))


def _seen(workload: Any) -> BeakerExperiment:
    from windlass.backends.beaker.decoding import seen_of  # lazy: grpc costs half a second

    if not workload.HasField("experiment"):
        message = f"{workload.environment.id} is a Beaker session, not an experiment"
        raise NotFoundError(message, hint="", code="beaker-not-found")
    return seen_of(workload)
