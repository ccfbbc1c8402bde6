"""gRPC interface of the fake Beaker: authentication, injected faults, and calls about workloads and jobs."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
from beaker import beaker_pb2_grpc as generated

from windlass.testing.beaker.engine import Engine
from windlass.testing.beaker.messages import Messages, asked, paged, pb, stamp
from windlass.testing.beaker.records import CancelCode, StoredExperiment, StoredJob
from windlass.testing.beaker.rpc_objects import ProtocolObjects
from windlass.testing.beaker.scenario import Scenario
from windlass.testing.beaker.world import BeakerState, Refused

__all__ = ["Gate", "Workloads", "add_to_server"]

_Handler = Callable[[Any, Any], Any]
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}


def add_to_server(server: Any, world: BeakerState, engine: Engine, messages: Messages) -> None:
    """Register all supported calls; the others return UNIMPLEMENTED, as in the shipped servicer."""
    servicer = type("Servicer", (Workloads, ProtocolObjects, generated.BeakerServicer), {})(world, engine, messages)
    generated.add_BeakerServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Interceptor that checks the token of every call and injects the scenario's faults."""

    def __init__(self, scenario: Scenario, token: str, count: Callable[[str], None]) -> None:
        self._scenario = scenario
        self._token = token
        self._count = count

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler of a call."""
        handler = continuation(details)
        if handler is None or handler.request_streaming:
            return handler  # unknown, or a call about queues, which the fake does not support
        method = details.method.rsplit("/", 1)[-1]
        given = dict(details.invocation_metadata).get("authorization", "")
        if handler.response_streaming:
            wrapped = functools.partial(self._stream, handler.unary_stream, method, given)
            return grpc.unary_stream_rpc_method_handler(
                wrapped, handler.request_deserializer, handler.response_serializer
            )
        wrapped = functools.partial(self._unary, handler.unary_unary, method, given)
        return grpc.unary_unary_rpc_method_handler(wrapped, handler.request_deserializer, handler.response_serializer)

    def _unary(self, behaviour: _Handler, method: str, given: str, request: Any, context: Any) -> Any:
        lost = self._before(method, given, context)
        answer = _answered(behaviour, request, context)
        self._lose(lost, context)
        return answer

    def _stream(self, behaviour: _Handler, method: str, given: str, request: Any, context: Any) -> Iterator[Any]:
        lost = self._before(method, given, context)
        self._lose(lost, context)
        try:
            yield from behaviour(request, context)
        except Refused as refused:
            context.abort(_CODES.get(refused.status, grpc.StatusCode.UNKNOWN), refused.message)

    def _before(self, method: str, given: str, context: Any) -> str:
        self._count(method)
        if self._scenario.is_token_expired or given.lower() != f"bearer {self._token}".lower():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid or expired token")
        fault = self._scenario.take_fault(method)
        if fault is None:
            return ""
        _sleep(fault.delay_s, context)
        if fault.status:
            context.abort(_CODES.get(fault.status, grpc.StatusCode.UNKNOWN), fault.message)
        return fault.lost

    def _lose(self, lost: str, context: Any) -> None:
        if lost == "hang":
            _sleep(float("inf"), context)
        if lost:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def _answered(behaviour: _Handler, request: Any, context: Any) -> Any:
    try:
        return behaviour(request, context)
    except Refused as refused:
        return context.abort(_CODES.get(refused.status, grpc.StatusCode.UNKNOWN), refused.message)


def _sleep(seconds: float, context: Any) -> None:
    """Wait, but stop once the client is gone."""
    limit = time.monotonic() + seconds
    while context.is_active() and time.monotonic() < limit:
        time.sleep(min(0.02, max(0.0, limit - time.monotonic())))


class Workloads:
    """Calls about experiments, tasks, jobs, their logs and their events."""

    def __init__(self, world: BeakerState, engine: Engine, messages: Messages) -> None:
        self._world = world
        self._engine = engine
        self._messages = messages

    def GetWorkload(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        del context
        with self._world.lock:
            return pb.GetWorkloadResponse(workload=self._messages.workload(self._world.experiment(request.workload_id)))

    def ResolveWorkloadName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            found = self._world.experiment(f"{request.author_name}/{request.workload_name}")
            return pb.ResolveWorkloadNameResponse(workload_id=found.id)

    def ListWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            is_ours = not options.author_id or options.author_id == self._world.user_id
            found = [one for one in self._world.experiments if is_ours and _is_wanted(one, options)]
            found.sort(key=lambda experiment: experiment.created_ns, reverse=options.sort_clause.sort_order != 2)
            page, token = paged(found, options, start)
            workloads = [self._messages.workload(experiment) for experiment in page]
            return pb.ListWorkloadsResponse(workloads=workloads, next_page_token=token)

    def UpdateWorkload(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            experiment = self._world.experiment(request.workload_id)
            if request.HasField("name"):
                experiment.name = self._world.check_name(request.name)
            if request.HasField("description"):
                experiment.description = request.description
            return pb.UpdateWorkloadResponse(workload=self._messages.workload(experiment))

    def CancelWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            for experiment in [self._world.experiment(identity) for identity in request.workload_ids]:
                self._engine.cancel(experiment, f"canceled by {self._world.user}")
        return pb.CancelWorkloadsResponse(workload_ids=request.workload_ids)

    def DeleteWorkloads(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            for experiment in [self._world.experiment(identity) for identity in request.workload_ids]:
                if not experiment.status.is_final:
                    raise Refused(400, f"experiment {experiment.name!r} has not finished")
                self._world.experiments.remove(experiment)
        return pb.DeleteWorkloadsResponse()

    def RestartExperimentTasks(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            experiment = self._world.experiment(request.experiment_id)
            self._engine.restart(experiment)
            return pb.RestartExperimentTasksResponse(workload=self._messages.workload(experiment))

    def GetExperimentYamlSpec(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            spec = self._world.experiment(request.experiment_id).spec
        return pb.GetExperimentYamlSpecResponse(experiment_spec=json.dumps(spec, indent=2))

    def GetJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            return pb.GetJobResponse(job=self._messages.job(self._world.job(request.job_id)))

    def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            jobs = [job for experiment in self._world.experiments for job in experiment.jobs]
            found = [job for job in jobs if self._is_listed(job, options)]
            found.sort(key=lambda job: (job.created_ns, job.id), reverse=options.sort_clause.sort_order != 2)
            page, token = paged(found, options, start)
            return pb.ListJobsResponse(jobs=[self._messages.job(job) for job in page], next_page_token=token)

    def PreemptJob(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            job = self._world.job(request.job_id)
            code = CancelCode(request.canceled_code or CancelCode.USER_PREEMPTION)
            self._engine.preempt(job, code, request.canceled_for or f"preempted by {self._world.user}")
            return pb.PreemptJobResponse(job=self._messages.job(job))

    def StreamJobLogs(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        with self._world.lock:
            job = self._world.job(request.job_id)
            position = _first_line(job, request)
        context.add_callback(self._wake)
        while True:
            with self._world.changed:
                if not context.is_active():
                    return
                lines = job.log[position : position + 1000]
                position += len(lines)
                if not lines:
                    if not request.follow or job.exited_ns or job.finalized_ns:
                        return
                    self._world.changed.wait()
            for line in lines:
                yield pb.JobLog(timestamp=stamp(line.at_ns), message=line.message)

    def ListSummarizedJobEvents(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            events = list(self._world.job(options.job_id).events)
        events.sort(key=lambda event: event.at_ns, reverse=options.sort_clause.sort_order != 2)
        page, token = paged(events, options, start)
        summaries = [
            pb.SummarizedJobEvent(
                job_id=options.job_id,
                status=event.status,
                occurrences=1,
                earliest_occurrence=stamp(event.at_ns),
                latest_occurrence=stamp(event.at_ns),
                latest_message=event.message,
            )
            for event in page
        ]
        return pb.ListSummarizedJobEventsResponse(summarized_job_events=summaries, next_page_token=token)

    def _wake(self) -> None:
        with self._world.changed:
            self._world.changed.notify_all()

    def _is_listed(self, job: StoredJob, options: Any) -> bool:
        rules: dict[str, Callable[[Any], bool]] = {
            "task_id": lambda wanted: job.task.id == wanted,
            "finalized": lambda wanted: bool(job.finalized_ns) == wanted,
            "scheduled": lambda wanted: bool(job.scheduled_ns) == wanted,
            "canceled": lambda wanted: bool(job.canceled_ns) == wanted,
            "exited": lambda wanted: bool(job.exited_ns) == wanted,
            "scheduled_on_node_id": lambda wanted: job.node is not None and job.node.id == wanted,
            "environment_id": lambda wanted: not wanted,
        }
        return all(fits(getattr(options, key)) for key, fits in rules.items() if options.HasField(key))


def _is_wanted(experiment: StoredExperiment, options: Any) -> bool:
    is_final = experiment.status.is_final
    rules: dict[str, Callable[[Any], bool]] = {
        "workspace_id": lambda wanted: experiment.workspace_id == wanted,
        "job_finalized": lambda wanted: is_final == wanted,
        "workload_type": lambda wanted: wanted in (0, 1),
        "name_or_description_substring": lambda wanted: wanted in experiment.name or wanted in experiment.description,
        "created_before": lambda wanted: experiment.created_ns < wanted.ToNanoseconds(),
        "created_after": lambda wanted: experiment.created_ns > wanted.ToNanoseconds(),
    }
    if options.statuses and int(experiment.status) not in options.statuses:
        return False
    return all(fits(getattr(options, key)) for key, fits in rules.items() if options.HasField(key))


def _first_line(job: StoredJob, request: Any) -> int:
    if request.HasField("since"):
        since_ns = request.since.ToNanoseconds()
        return next((index for index, line in enumerate(job.log) if line.at_ns >= since_ns), len(job.log))
    return max(0, len(job.log) - request.tail_lines) if request.tail_lines else 0
