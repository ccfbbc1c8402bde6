"""Virtual clients: launch, look after, stop, retry and resume a run, and die in the middle of it.

The steps are those of `launch.submit`, `launch.keeper` and `launch.control`; what to do is decided by the shipped
`reconcile`. Between two steps of one client anything else may happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.sim.backend import LostReplyError, RefusedError, VirtualBackend
from tests.sim.cluster import Cluster
from tests.sim.disk import Crash, Reader, VirtualWriter
from tests.sim.node import WALL_START
from tests.sim.scenario import Scenario
from tests.sim.site.backend import SiteBackend
from windlass.backends.protocol import JobState, Observation
from windlass.launcher.reconcile import policy
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.retry import Budgets
from windlass.record.state import End, RunFacts, State, TaskFacts

__all__ = ["Clients"]

_MAX_ACTIONS = 20
Steps = Iterator[float]


class _Client:
    """One command of a person, or of cron, on its way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.writer: VirtualWriter | None = None


class Clients:
    """Everybody who ever types `windlass`."""

    def __init__(self, cluster: Cluster, backend: VirtualBackend | SiteBackend, scenario: Scenario) -> None:
        self._cluster, self._world, self._backend = cluster, cluster.world, backend
        self._plans = {task.name: task for task in scenario.tasks}
        self._reader = Reader(cluster.disk)
        self._facts = RunFacts()
        self._locked_by: _Client | None = None
        self._living: list[_Client] = []
        self._num = 0
        self.have_left = False

    @property
    def are_idle(self) -> bool:
        """Whether no command is on its way."""
        return not self._living

    def launch(self) -> None:
        """`windlass launch`, or again when nothing of the first was recorded."""
        self._begin(self._launch)

    def keep(self) -> None:
        """What every command that acts on a run does."""
        self._begin(self._keep)

    def ask(self, verb: str) -> None:
        """stop, checkpoint-stop, retry or resume."""
        if verb in ("stop", "checkpoint-stop"):
            self._begin(lambda client: self._stop(client, is_checkpoint_wanted=verb != "stop"))
        else:
            self._begin(lambda client: self._again(client, resets_budgets=verb == "retry"))

    def leave(self) -> None:
        """Everybody is killed, and nobody types anything until they are back."""
        self.kill()
        self.have_left = True

    def kill(self) -> None:
        """SIGKILL to every command that is on its way."""
        for client in list(self._living):
            self._end(client)

    # --- running commands -----------------------------------------------------------------------------------------

    def _begin(self, verb: Callable[[_Client], Steps]) -> None:
        if self.have_left:
            return
        self._num += 1
        client = _Client(f"client-{self._num}")
        self._living.append(client)
        self._advance(client, verb(client))

    def _advance(self, client: _Client, steps: Steps) -> None:
        if not client.is_alive:
            return
        try:
            delay = next(steps)
        except (StopIteration, Crash, LostReplyError, RefusedError):
            self._end(client)
            return
        self._world.at(delay, self._advance, client, steps)

    def _end(self, client: _Client) -> None:
        client.is_alive = False
        self._living.remove(client)
        if self._locked_by is client:
            self._locked_by = None
        if client.writer is not None:
            client.writer.close()

    def _pause(self) -> float:
        return self._world.uniform(0.001, 0.05) if self._world.chance(0.8) else self._world.uniform(0.1, 4.0)

    def _lock(self, client: _Client) -> Steps:
        while self._locked_by is not None:
            yield 0.1
        self._locked_by = client

    def _append(self, client: _Client, kind: str, **data: object) -> None:
        if client.writer is None:
            client.writer = VirtualWriter(self._cluster.disk, client.name, self._cluster.nodes[0].clock, client)
        client.writer.append(kind, **data)

    def _read(self) -> RunFacts:
        for record in self._reader.poll():
            self._facts.apply(record)
        return self._facts

    # --- verbs ----------------------------------------------------------------------------------------------------

    def _launch(self, client: _Client) -> Steps:
        yield from self._lock(client)
        tasks = {
            plan.name: {
                "after": list(plan.after),
                "replicas": plan.num_replicas,
                "interrupted": plan.budgets.interrupted,
                "failed": plan.budgets.failed,
            }
            for plan in self._plans.values()
        }
        self._append(client, events.RUN_CREATED, run="sim-1", name="sim", why="", plan_hash="0", tasks=tasks)
        yield self._pause()
        yield from self._intend(client, dict.fromkeys(tasks, 1), resets_budgets=True)
        for name in tasks:
            yield from self._submit(client, name, 1)

    def _intend(self, client: _Client, jobs: dict[str, int], *, resets_budgets: bool) -> Steps:
        for name, number in jobs.items():
            self._append(
                client,
                events.JOB_INTENDED,
                task=name,
                job=number,
                token=f"{self._world.random.getrandbits(64):016x}",
                backend="slurm" if isinstance(self._backend, SiteBackend) else "virtual",
                resets_budgets=resets_budgets,
            )
            yield self._pause()

    def _submit_then_intend(self, client: _Client, jobs: dict[str, int], *, resets_budgets: bool) -> Steps:
        """What the mutant `submit-before-journal` does instead of `_intend`."""
        for name, number in jobs.items():
            self._backend.submit(self._plans[name], number, f"{self._world.random.getrandbits(64):016x}")
            yield self._pause()
        yield from self._intend(client, jobs, resets_budgets=resets_budgets)

    def _submit(self, client: _Client, name: str, number: int) -> Steps:
        token = self._read().task(name).jobs[number].token
        yield self._pause()
        try:
            backend_id = self._backend.submit(self._plans[name], number, token)
        except RefusedError as error:
            self._append(client, events.JOB_REFUSED, task=name, job=number, cause="start-failed", message=str(error))
            raise
        yield self._pause()
        self._append(client, events.JOB_SUBMITTED, task=name, job=number, backend_id=backend_id, locator="")

    def _keep(self, client: _Client) -> Steps:
        facts = self._read()
        has_loose_ends = any(map(policy.has_loose_ends, facts.tasks.values())) or bool(self._left(facts))
        if not facts.tasks or (facts.state.is_terminal and not has_loose_ends):
            return
        yield from self._lock(client)
        yield from self._keep_locked(client)
        self._locked_by = None

    def _keep_locked(self, client: _Client) -> Steps:
        for _ in range(_MAX_ACTIONS):
            seen = self._observe()
            yield self._pause()
            step = self._next_action(seen)
            if step is None:
                return
            self._world.log("%s: %s of %s", client.name, step[1], step[0])
            yield self._pause()
            yield from self._do(client, *step)

    def _observe(self) -> dict[str, Observation]:
        seen: dict[str, Observation] = {}
        for name, task in self._read().tasks.items():
            job = task.jobs.get(task.newest_job)
            is_open = task.end is None or policy.has_loose_ends(task)
            if is_open and job is not None and job.is_submitted:
                seen[name] = self._backend.observe(job.backend_id)
                truth = self._backend.is_gone(job.backend_id)
                self._cluster.monitor.on_observed(f"jobs/{name}-{job.number}", is_gone=truth)
        return seen

    def _left(self, facts: RunFacts) -> list[tuple[str, int]]:
        """Jobs of tasks that have ended of which something may be left in a queue."""
        if not isinstance(self._backend, SiteBackend):
            return []
        return [(name, job) for name, task in facts.tasks.items() for job in task.jobs_left]

    def has_left(self) -> bool:
        """Whether nobody has seen yet that nothing is left of some job."""
        return bool(self._left(self._read()))

    def _after_end(self) -> tuple[str, policy.Action] | None:
        """As `launch.reconcile.assessment`: what is to be done about jobs of tasks that have ended."""
        for name, number in self._left(self._read()):
            task = self._read().task(name)
            observed = self._backend.observe(task.jobs[number].backend_id)
            action = policy.after_end(task, number, observed, WALL_START + self._world.now)
            if action is not None:
                return name, action
        return None

    def _next_action(self, seen: dict[str, Observation]) -> tuple[str, policy.Action] | None:
        facts = self._read()
        for name, task in facts.tasks.items():
            budgets = Budgets(*facts.budgets.get(name, (50, 0)))
            action = policy.reconcile(task, seen.get(name, Observation(state=JobState.UNKNOWN)), budgets)
            if action is not None:
                return name, action
        return self._after_end()

    def _do(self, client: _Client, name: str, action: policy.Action) -> Steps:
        if isinstance(action, policy.Submit):
            yield from self._submit(client, name, action.job)
        elif isinstance(action, policy.NextJob):
            yield from self._intend(client, {name: action.job}, resets_budgets=False)
            yield from self._submit(client, name, action.job)
        elif isinstance(action, policy.Cancel):
            self._backend.cancel(self._read().task(name).jobs[action.job].backend_id)
        elif isinstance(action, policy.MarkLost):
            self._backend.sweep(self._read().task(name).jobs[action.job].backend_id)
            self._append(
                client,
                events.JOB_LOST,
                task=name,
                job=action.job,
                attempt=action.attempt,
                cause=str(action.cause),
                message=action.message,
            )
        elif isinstance(action, policy.EndLeftovers):
            self._backend.sweep(self._read().task(name).jobs[action.job].backend_id)
            for rank in action.ranks:
                end = End(str(Cause.NODE_LOST), rank=rank, message="left alone").to_data()
                self._append(client, events.PROCESS_ENDED, task=name, attempt=action.attempt, rank=rank, end=end)
        elif isinstance(action, policy.Unqueue):
            assert isinstance(self._backend, SiteBackend)  # the other has no queue
            self._backend.unqueue(self._read().task(name).jobs[action.job].backend_id)
        elif isinstance(action, policy.RecordGone):
            self._append(client, events.JOB_GONE, task=name, job=action.job)
        else:
            self._append(
                client,
                events.TASK_ENDED,
                task=name,
                job=action.job,
                attempt=action.attempt,
                verdict=str(action.verdict),
                cause=action.cause,
                message=action.message,
            )

    def _stop(self, client: _Client, *, is_checkpoint_wanted: bool) -> Steps:
        tasks = {name: task.newest_job for name, task in self._read().tasks.items() if not task.end and task.newest_job}
        yield self._pause()
        if tasks:
            self._append(
                client,
                events.STOP_REQUESTED,
                tasks=tasks,
                reason="stopped by hand",
                is_checkpoint_wanted=is_checkpoint_wanted,
            )
            yield self._pause()
            yield from self._keep(client)

    def _again(self, client: _Client, *, resets_budgets: bool) -> Steps:
        yield from self._keep(client)
        yield from self._lock(client)
        facts = self._read()
        if not facts.tasks or not facts.state.is_terminal:
            return
        is_wanted = _is_retried if resets_budgets else _is_resumed
        wanted = {name: task.newest_job + 1 for name, task in facts.tasks.items() if is_wanted(task)}
        yield from self._intend(client, wanted, resets_budgets=resets_budgets)
        for name, number in wanted.items():
            yield from self._submit(client, name, number)


def _is_retried(task: TaskFacts) -> bool:
    return task.state in (State.FAILED, State.STOPPED)


def _is_resumed(task: TaskFacts) -> bool:
    return task.state is State.STOPPED
