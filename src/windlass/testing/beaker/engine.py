"""Life cycle of jobs: queued, scheduled, ready, running, ended, and how the end of one job affects others.

One thread starts, stops and follows all processes; it sleeps until something changes or a limit passes.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping

from windlass.testing.beaker import container
from windlass.testing.beaker.furnishing import Furnishing, Unfurnishable
from windlass.testing.beaker.records import CancelCode, Event, Status, StoredExperiment, StoredJob, StoredTask
from windlass.testing.beaker.scenario import Scenario, Trigger
from windlass.testing.beaker.world import BeakerState

__all__ = ["Engine"]

_PREEMPTIONS = (CancelCode.SYSTEM_PREEMPTION, CancelCode.USER_PREEMPTION, CancelCode.SIBLING_TASK_PREEMPTION)
_LOST = (CancelCode.NODE_UNAVAILABLE, CancelCode.NODE_UNHEALTHY, CancelCode.HEALTHCHECK_FAILED)


class Engine:
    """Engine that runs the jobs of a Beaker state until it is closed."""

    def __init__(self, world: BeakerState, scenario: Scenario, furnishing: Furnishing) -> None:
        self._world = world
        self._scenario = scenario
        self._furnishing = furnishing
        self._readers: dict[str, threading.Thread] = {}
        self._resumes: dict[str, bool] = {}
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="fake-beaker-engine", daemon=True)

    def start(self) -> None:
        """Start the thread; returns immediately."""
        self._thread.start()

    def close(self) -> None:
        """Kill all processes and end all threads; blocks until they are gone."""
        with self._world.changed:
            self._is_closing = True
            self._world.changed.notify_all()
        self._thread.join()
        for reader in self._readers.values():
            reader.join(timeout=5.0)

    def cancel(self, experiment: StoredExperiment, reason: str) -> None:
        """Cancel all unfinished jobs of an experiment. Idempotent."""
        with self._world.changed:
            if not experiment.canceled_ns:
                experiment.canceled_ns = time.time_ns()
                experiment.canceled_for = reason
            for task in experiment.tasks:
                self._cancel(task.job, CancelCode.MANUAL, reason)
            self._world.changed.notify_all()

    def preempt(self, job: StoredJob, code: CancelCode, reason: str) -> None:
        """Preempt a job now."""
        with self._world.changed:
            self._cancel(job, code, reason)
            self._world.changed.notify_all()

    def restart(self, experiment: StoredExperiment) -> None:
        """Start new jobs for all tasks that failed or were canceled."""
        with self._world.changed:
            experiment.canceled_ns, experiment.canceled_for = 0, ""
            for task in experiment.tasks:
                if task.job.finalized_ns and task.job.exit_code != 0:
                    self._renew(task)
            self._world.changed.notify_all()

    # the loop ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._world.changed:
            while not self._is_closing:
                steps = [self._advance(experiment) for experiment in list(self._world.experiments)]
                if any(steps):
                    self._world.changed.notify_all()
                else:
                    self._world.changed.wait(self._until_next_limit())
            started = [job for job in self._jobs() if job.process is not None]
        for job in started:
            container.end(job)
            assert job.process is not None
            job.process.wait()

    def _jobs(self) -> list[StoredJob]:
        return [job for experiment in self._world.experiments for job in experiment.jobs]

    def _until_next_limit(self) -> float | None:
        limits = [limit for job in self._jobs() if not job.finalized_ns for limit in job.deadlines.values()]
        return max(0.0, min(limits) - time.monotonic()) if limits else None

    def _advance(self, experiment: StoredExperiment) -> bool:
        """Advance each task by one step; return whether any advanced."""
        steps = [self._step(task, task.job) for task in experiment.tasks]
        return any(steps)

    def _step(self, task: StoredTask, job: StoredJob) -> bool:
        if job.finalized_ns:
            return False
        if job.exited_ns:
            return self._finalize(job)
        if job.has_ended:
            return self._exited(job)
        if job.canceled_ns:
            return self._stop(job)
        if self._is_late(job) or self._pull(job):
            return True
        if not job.scheduled_ns:
            return self._schedule(job)
        if not job.ready_ns:
            return self._make_ready(job)
        return not job.started_ns and self._start(job)

    # the way up ----------------------------------------------------------------------------------------------------

    def _schedule(self, job: StoredJob) -> bool:
        if any(other.job.canceled_ns and not other.job.finalized_ns for other in self._siblings(job.task)):
            return False  # a group restarts once all of it has stopped
        needed = [
            mount["source"]["result"] for mount in job.task.spec.get("datasets") or () if mount["source"].get("result")
        ]
        for other in job.task.experiment.tasks:
            if other.name in needed and not other.job.finalized_ns:
                return False
            if other.name in needed and other.job.status is not Status.SUCCEEDED:
                reason = f"task {other.name!r}, whose result is needed, did not succeed"
                return self._cancel(job, CancelCode.SIBLING_TASK_FAILED, reason)
        if self._scenario.queue_reason:
            return self._say(job, "unscheduled", self._scenario.queue_reason)
        try:
            job.node = self._furnishing.place(job)
        except Unfurnishable as error:
            job.scheduling_message = str(error)
            self._say(job, "unscheduled", str(error))
            return self._cancel(job, CancelCode.IMPOSSIBLE_TO_SCHEDULE, str(error))
        job.scheduled_ns = time.time_ns()
        job.scheduling_message = ""
        job.results = self._world.add_dataset(
            "", self._world.workspace(job.task.experiment.workspace_id), source_job=job.id
        )
        self._furnishing.prepare_results(job)
        wait_ns = job.task.spec.get("synchronizedStartTimeout")
        if wait_ns and job.task.is_replica:
            job.deadlines["synchronized start"] = time.monotonic() + wait_ns / 1e9
        return self._say(job, "scheduled", f"Scheduled on {job.node.hostname}")

    def _make_ready(self, job: StoredJob) -> bool:
        if job.task.rank in self._scenario.unready_ranks and job.task.is_replica:
            return self._say(job, "pulling", "Pulling the image")
        job.ready_ns = time.time_ns()
        return self._say(job, "ready", "Ready to start")

    def _start(self, job: StoredJob) -> bool:
        siblings = self._siblings(job.task)
        if "synchronized start" in job.deadlines:
            if not all(other.job.ready_ns or other.job.finalized_ns for other in siblings):
                return False
            del job.deadlines["synchronized start"]
        if job.task.spec.get("leaderSelection") and job.task.is_replica:
            job.leader = siblings[0].job
            if job.leader.node is None:
                return False
        try:
            furnished = self._furnishing.furnish(job)
            job.environ = furnished.environ
            job.process = container.start(furnished)
        except (Unfurnishable, OSError) as error:
            return self._fail(job, str(error))
        job.started_ns = time.time_ns()
        self._readers[job.id] = container.read_output(job, job.process, self._hear, self._silence)
        if job.task.spec.get("timeout"):
            job.deadlines["timeout"] = time.monotonic() + job.task.spec["timeout"] / 1e9
        return self._say(job, "started", "Started")

    def _hear(self, job: StoredJob, line: bytes) -> None:
        """Store a line of output, and fire the triggers that wait for it."""
        with self._world.changed:
            job.log.append(container.stamp(job, line))
            for trigger in self._scenario.triggers:
                if trigger.pattern is not None and trigger.fits(job) and trigger.pattern.search(line):
                    self._pull_one(job, trigger)
            self._world.changed.notify_all()

    def _silence(self, job: StoredJob) -> None:
        with self._world.changed:
            job.has_ended = True
            self._world.changed.notify_all()

    def _pull(self, job: StoredJob) -> bool:
        if not job.started_ns:
            return False
        for trigger in self._scenario.triggers:
            if trigger.pattern is not None:
                continue
            name = f"trigger {id(trigger)}"
            if not trigger.fits(job):
                job.deadlines.pop(name, None)
            elif job.deadlines.setdefault(name, time.monotonic() + trigger.after_s) <= time.monotonic():
                return self._pull_one(job, trigger)
        return False

    def _pull_one(self, job: StoredJob, trigger: Trigger) -> bool:
        trigger.times -= 1
        if trigger.resumes is not None:
            self._resumes[job.id] = trigger.resumes
        self._cancel(job, trigger.code, trigger.reason)
        if trigger.is_sudden and job.process is not None:
            container.end(job)
        return True

    def _is_late(self, job: StoredJob) -> bool:
        now = time.monotonic()
        if job.deadlines.get("timeout", now + 1) <= now:
            return self._cancel(job, CancelCode.TIMEOUT, "the task's timeout has passed")
        if job.deadlines.get("synchronized start", now + 1) <= now:
            late = [other.rank for other in self._siblings(job.task) if not other.job.ready_ns]
            reason = f"synchronized start timeout: replicas {late} did not become ready"
            for other in self._siblings(job.task):
                self._cancel(other.job, CancelCode.TIMEOUT, reason)
            return True
        return False

    # the way down --------------------------------------------------------------------------------------------------

    def _cancel(self, job: StoredJob, code: CancelCode, reason: str) -> bool:
        if job.canceled_ns or job.finalized_ns or job.exited_ns:
            return False
        job.canceled_ns = time.time_ns()
        job.canceled_code = code
        job.canceled_for = reason
        job.deadlines.clear()
        self._say(job, "canceled", reason)
        if job.process is not None:
            container.end(job, signal.SIGTERM)
            job.deadlines["grace"] = time.monotonic() + self._scenario.grace_s
        if code in _PREEMPTIONS and job.task.spec.get("propagatePreemption"):
            for other in self._siblings(job.task):
                self._cancel(other.job, CancelCode.SIBLING_TASK_PREEMPTION, "a sibling task was preempted")
        return True

    def _stop(self, job: StoredJob) -> bool:
        if job.process is None:
            return self._finalize(job)
        if job.deadlines.get("grace", 0.0) <= time.monotonic():
            container.end(job)
            job.deadlines.clear()
            job.deadlines["killed"] = time.monotonic() + 5.0
        return False

    def _exited(self, job: StoredJob) -> bool:
        assert job.process is not None
        code = job.process.wait()
        container.end(job)
        job.deadlines.clear()
        reason = container.why_not_started(self._furnishing.folder(job), code)
        if reason and not job.canceled_ns:
            return self._fail(job, reason)
        job.exit_code = code if code >= 0 else 128 - code
        job.exited_ns = time.time_ns()
        return self._say(job, "exited", f"Exited with code {job.exit_code}")

    def _fail(self, job: StoredJob, reason: str) -> bool:
        job.failed_ns = job.exited_ns = time.time_ns()
        job.message = reason  # no exit code: nothing ran
        return self._say(job, "failed", reason)

    def _finalize(self, job: StoredJob) -> bool:
        if job.results is not None:
            self._world.commit(job.results)
        job.finalized_ns = time.time_ns()
        self._say(job, "finalized", "Finalized")
        self._draw_conclusions(job)
        return True

    def _draw_conclusions(self, job: StoredJob) -> None:
        """Handle the end of a job: start a new one, end its siblings, or do nothing."""
        task, experiment = job.task, job.task.experiment
        if experiment.canceled_ns:
            return
        if job.canceled_code in (*_PREEMPTIONS, *_LOST):
            if self._resumes.get(job.id, _auto_resumes(task)):
                self._renew(task)
                return
        elif job.canceled_code == CancelCode.SIBLING_TASK_RETRY:
            self._renew(task)
            return
        elif job.exit_code == 0 and not job.failed_ns and not job.canceled_ns:
            return
        elif not job.canceled_ns and experiment.num_retries < _allowed_retries(experiment):
            experiment.num_retries += 1
            for other in self._siblings(task) if task.spec.get("propagateFailure") else ():
                self._cancel(other.job, CancelCode.SIBLING_TASK_RETRY, "a sibling task is retried")
            self._renew(task)
            return
        if task.spec.get("propagateFailure") and job.canceled_code != CancelCode.SIBLING_TASK_FAILED:
            for other in experiment.tasks:
                self._cancel(other.job, CancelCode.SIBLING_TASK_FAILED, "a sibling task failed")

    def _renew(self, task: StoredTask) -> None:
        task.jobs.append(StoredJob(task=task, retry_ancestor=task.job.id))
        self._say(task.job, "created", "Created in the place of an earlier job")

    def _siblings(self, task: StoredTask) -> list[StoredTask]:
        if not task.is_replica:
            return task.experiment.tasks if task.spec.get("propagatePreemption") else [task]
        return [other for other in task.experiment.tasks if other.group_id == task.group_id]

    def _say(self, job: StoredJob, status: str, message: str) -> bool:
        """Record an event unless it repeats the last one; return whether it is new."""
        is_new = not job.events or (job.events[-1].status, job.events[-1].message) != (status, message)
        if is_new:
            job.events.append(Event(at_ns=time.time_ns(), status=status, message=message))
        return is_new


def _auto_resumes(task: StoredTask) -> bool:
    """Return whether a task auto-resumes: true by default, never for a spec with `preemptible`."""
    context: Mapping[str, object] = task.spec.get("context") or {}
    if "preemptible" in context:
        return False
    return context.get("autoResume") is not False


def _allowed_retries(experiment: StoredExperiment) -> int:
    return int((experiment.spec.get("retry") or {}).get("allowedTaskRetries") or 0)
