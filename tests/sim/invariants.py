"""What must hold in every history, checked at every event by somebody who sees everything and decides nothing.

The monitor knows true time, true exit codes and which processes live. It judges by the journal and by these, never
by the policies it watches; the oracles of budgets and progress are written again, in the plainest way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.node import WALL_START
from tests.sim.oracle import refusal_to_go_on
from tests.sim.scenario import Scenario, TaskPlan
from tests.sim.world import Violation, World
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.state import TRANSITIONS, Attempt, End, RunFacts, State, TaskFacts
from windlass.supervise.gang.messages import Order

if TYPE_CHECKING:
    from tests.sim.backend import VirtualJob
    from tests.sim.process import VirtualProcess
    from tests.sim.site.chain_watch import ChainWatch
    from tests.sim.site.job import SiteJob
    from tests.sim.supervisor import VirtualSupervisor

__all__ = ["Monitor"]

_REACTION_S = 2.5
"""A leader looks at the journal every second; what it starts so soon after a request is not yet disobedience."""

_SLOW_S = 25.0
_SETTLED_S = 60.0
_ASKED = frozenset({Cause.CANCELLED, Cause.TIMEOUT, Cause.WALLTIME, Cause.SIBLING_FAILED})
_LEADERS_OWN = _ASKED | {Cause.NEVER_READY, Cause.PREEMPTED}


class Monitor:
    """Raises `Violation` as soon as something is wrong."""

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.facts = RunFacts()
        self.records: dict[str, list[Record]] = {}
        self.last_fault_at = -1.0
        self.has_clock_jump = False
        self._world = world
        self._plans: dict[str, TaskPlan] = {task.name: task for task in scenario.tasks}
        self._is_slow = not scenario.faults.is_calm
        self._processes: dict[tuple[str, int, int], VirtualProcess] = {}
        self._running: dict[tuple[str, int], VirtualProcess] = {}
        self._ready: dict[tuple[str, int, int], float] = {}
        self._epochs: dict[VirtualSupervisor, int] = {}
        self._stopped_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._superseded_at: dict[str, float] = {}
        self._lively: dict[str, float] = {}
        self._site = scenario.site
        self.known_gap = ""
        self.chains: ChainWatch | None = None

    # --- what happens ---------------------------------------------------------------------------------------------

    def on_fault(self, until: float = 0.0) -> None:
        """Something goes wrong now, or until a later time."""
        self.last_fault_at = max(self.last_fault_at, self._world.now, until)

    def on_record(self, record: Record) -> None:
        """A record is durable."""
        self.records.setdefault(record.writer, []).append(record)
        names = list(record.data["tasks"]) if "tasks" in record.data else [record.data["task"]]
        before = {name: self.facts.task(name).state for name in names}
        check = _CHECKS.get(record.kind)
        if check is not None:
            check(self, record)
        self.facts.apply(record)
        for name in names:
            self._check_transition(name, before[name], self.facts.task(name))
        if record.kind == events.ATTEMPT_ENDED:
            self._check_cause(record)
        if self.chains is not None:
            self.chains.on_record(record)

    def on_ready(self, job: VirtualJob | SiteJob, attempt: int, rank: int) -> None:
        """A replica is ready for an attempt."""
        self._ready.setdefault((job.task.name, attempt, rank), self._world.now)

    def on_order(self, supervisor: VirtualSupervisor, order: Order) -> None:
        """A supervisor obeys this order."""
        highest = self._epochs.get(supervisor, 0)
        if order.epoch < highest:
            self._fail(f"{supervisor.job.task.name}.{supervisor.rank} obeys epoch {order.epoch} after {highest}")
        self._epochs[supervisor] = order.epoch

    def on_late_leader(self, supervisor: VirtualSupervisor, epoch: int, by: str) -> None:
        """A leader goes on, and has had the time to see that it is none any more."""
        name = f"{supervisor.job.folder}.{supervisor.rank} {supervisor.incarnation.name}".rstrip()
        self._fail(f"{name} still leads with epoch {epoch}, though {by} took over")

    def on_foreign_leader(self, supervisor: VirtualSupervisor, leader: VirtualSupervisor) -> None:
        """A replica gets an order of a leader of another start of the job."""
        name = f"{supervisor.job.folder}.{supervisor.rank}"
        self._fail(f"{name} of start {supervisor.incarnation.name} follows a leader of {leader.incarnation.name}")

    def on_submitted(self, job: VirtualJob | SiteJob) -> None:
        """The backend takes a job that it did not have."""
        known = self.facts.task(job.task.name).jobs.get(job.number)
        if known is None or known.token != job.token:
            self._fail(f"job {job.number} of {job.task.name} was submitted without an intent in the journal")

    def on_observed(self, folder: str, *, is_gone: bool) -> None:
        """A client looks at a job, and this is the truth about it."""
        if not is_gone:
            self._lively[folder] = self._world.now
        else:
            self._lively.pop(folder, None)

    def on_user_code(self, process: VirtualProcess) -> None:
        """The gate is open: the first statement of the user is executed."""
        task, attempt, rank = process.task.name, process.attempt, process.rank
        if (task, attempt, rank) in self._processes:
            self._fail(f"user code of {task} attempt {attempt} rank {rank} starts twice")
        self._processes[task, attempt, rank] = process
        other = self._running.get((task, rank))
        if other is not None and (
            other.is_alive if self._site is None else other.runs and not self._is_known_gap(other)
        ):
            self._fail(f"{task}.{rank}: attempt {attempt} starts while attempt {other.attempt} lives")
        self._running[task, rank] = process
        for left in self._processes.values():
            if left.helper is not None and left.helper.is_alive and (left.task.name, left.rank) == (task, rank):
                self._fail(f"{task}.{rank}: attempt {attempt} starts while a helper of attempt {left.attempt} lives")
        self._check_alone(process)
        known = self.facts.task(task).attempts.get(attempt)
        replica = known.replicas.get(rank) if known else None
        if known is None or replica is None or not known.started_at or not replica.is_starting:
            self._fail(f"user code of {task} attempt {attempt} rank {rank} starts without a record of it")
        elif replica.process != process.identity:
            self._fail(f"{task}.{rank}: attempt {attempt} runs while the journal does not know its process")
        self._check_allowed(task, process.job, f"user code of attempt {attempt} rank {rank}")

    def on_going_on(self, process: VirtualProcess) -> None:
        """A process that was stopped runs again."""
        self._check_alone(process)

    def processes_of(self, task: str, attempt: int) -> list[VirtualProcess]:
        """All that executed user code of an attempt."""
        return [found for key, found in self._processes.items() if key[:2] == (task, attempt)]

    def living_of(self, task: str) -> list[VirtualProcess]:
        """User processes of a task that execute now."""
        return [found for key, found in self._processes.items() if key[0] == task and found.runs]

    def _is_known_gap(self, process: VirtualProcess) -> bool:
        return self.chains is not None and self.chains.is_known_gap(process)

    def _check_alone(self, process: VirtualProcess) -> None:
        """At a site: no rank of another attempt executes user code now."""
        if self._site is None:
            return
        for (task, attempt, rank), other in self._processes.items():
            is_other = task == process.task.name and attempt != process.attempt
            if is_other and other.runs and not self._is_known_gap(other):
                self._fail(
                    f"user code of {task} attempt {process.attempt} rank {process.rank} runs while rank {rank} of attempt {attempt} does"
                )
        if self.chains is not None:
            self.chains.on_user_code(process)

    def on_exit(self, process: VirtualProcess) -> None:
        """A process of the user is gone."""
        self._world.log("gone: %s", process.identity)

    def on_leave(self, supervisor: VirtualSupervisor, code: int) -> None:
        """A supervisor says that the task needs it no more."""
        task = self.facts.task(supervisor.job.task.name)
        if task.end is None and task.newest_job <= supervisor.job.number and code != 75:
            self._fail(
                f"{task.name}.{supervisor.rank} leaves with {code}, and the journal does not know the task's end"
            )
        if task.end is not None and code == 0 and task.end[0] is not State.SUCCEEDED:
            self._fail(f"{task.name}.{supervisor.rank} leaves with 0 from a task that {task.end[0]}")

    # --- records --------------------------------------------------------------------------------------------------

    def _attempt_started(self, record: Record) -> None:
        name, number = record.data["task"], record.data["attempt"]
        task, plan = self.facts.task(name), self._plans[name]
        missing = [rank for rank in range(plan.num_replicas) if (name, number, rank) not in self._ready]
        if missing:
            self._fail(f"{name} attempt {number} starts while replica {missing} is not ready")
        refusal = refusal_to_go_on(task, number, plan.budgets, has_true_time=not self.has_clock_jump)
        if refusal:
            self._fail(f"{name} attempt {number} starts although {refusal}")
        known = task.attempts.get(number)
        if self._is_late(record) and known is not None and known.started_at:
            self.known_gap = f"two starts of the job began attempt {number} of {name}"
        if not self._is_late(record):
            self._check_allowed(name, record.data["job"], f"attempt {number}")

    def _is_late(self, record: Record) -> bool:
        """Whether a record reaches the server long after it was made; what it leads to is judged where it happens."""
        return self._site is not None and self._world.now - (record.at - WALL_START) > _REACTION_S

    def _process_starting(self, record: Record) -> None:
        attempt = self.facts.task(record.data["task"]).attempts.get(record.data["attempt"])
        replica = attempt.replicas.get(record.data["rank"]) if attempt else None
        is_late = self._is_late(
            record
        )  # it hung while another start began that attempt; its process is held by its fencing agent
        if replica is not None and replica.is_starting and not is_late:
            self._fail(f"{record.writer} starts attempt {record.data['attempt']} a second time")

    def _job_lost(self, record: Record) -> None:
        folder = f"jobs/{record.data['task']}-{record.data['job']}"
        if folder in self._lively:
            self._fail(f"{folder} is called lost although it was seen alive at {self._lively[folder]:.1f} s")

    def _stop_requested(self, record: Record) -> None:
        for name in record.data["tasks"]:
            if self.facts.task(name).end is None:
                self._stopped_at.setdefault(name, self._world.now)

    def _job_intended(self, record: Record) -> None:
        name = record.data["task"]
        task = self.facts.task(name)
        if task.end is not None and task.end[0] is State.SUCCEEDED:
            self._fail(f"job {record.data['job']} of {name} is intended after it succeeded")
        if record.data["job"] > task.newest_job:
            self._superseded_at[name] = self._world.now
        if task.end is not None:
            self._ended_at.pop(name, None)
            self._stopped_at.pop(name, None)

    def _task_ended(self, record: Record) -> None:
        name, verdict = record.data["task"], State(record.data["verdict"])
        task = self.facts.task(name)
        self._ended_at.setdefault(name, self._world.now)
        is_cancelled = self.chains is not None and self.chains.is_cancelled(name)
        if verdict is State.STOPPED and not task.is_stop_wanted and not is_cancelled:
            self._fail(f"{name} is called stopped, and nobody asked")
        if verdict is State.SUCCEEDED:
            self._check_success(name, record.data["attempt"])
        stopped_at = self._stopped_at.get(name)
        is_late = stopped_at is not None and self._world.now > stopped_at + self._patience_s
        if any(job.refusal for job in task.jobs.values()):
            return
        if verdict is State.FAILED and is_late and task.end is None and record.data["cause"] != Cause.SIBLING_FAILED:
            self._fail(f"{name} failed ({record.data['cause']}) although a stop was asked for at {stopped_at:.1f} s")

    def _check_success(self, name: str, number: int) -> None:
        for rank in range(self._plans[name].num_replicas):
            process = self._processes.get((name, number, rank))
            if process is None or process.code != 0:
                self._fail(f"{name} is called a success, and rank {rank} of attempt {number} did not end with 0")

    # --- judgements -----------------------------------------------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return _SLOW_S if self._is_slow else _REACTION_S

    def _check_allowed(self, name: str, job: int, what: str) -> None:
        """Nothing of a task starts before its upstream succeeded, after its end, after a stop, in an older job."""
        task, now = self.facts.task(name), self._world.now
        for upstream in self._plans[name].after:
            if self.facts.task(upstream).state is not State.SUCCEEDED:
                self._fail(f"{what} of {name} starts before {upstream} succeeded")
        if task.end is not None and now > self._ended_at.get(name, 0.0) + _REACTION_S:
            self._fail(f"{what} of {name} starts after the task {task.end[0]}")
        if job not in task.jobs:
            self._fail(f"{what} of {name} starts in job {job}, which the journal does not know")
        if job < task.newest_job and now > self._superseded_at[name] + self._patience_s:
            self._fail(f"{what} of {name} starts in job {job}, which job {task.newest_job} superseded")
        stopped_at = self._stopped_at.get(name)
        if stopped_at is not None and task.is_stop_wanted and now > stopped_at + self._patience_s:
            self._fail(f"{what} of {name} starts although a stop was asked for at {stopped_at:.1f} s")

    def _check_transition(self, name: str, before: State, task: TaskFacts) -> None:
        if task.state is not before and task.state not in TRANSITIONS[before]:
            self._fail(f"{name} goes from {before} to {task.state}")

    def _check_calm(self, name: str, attempt: Attempt) -> None:
        """Long after the last fault every replica that is wanted comes, and none gets lost."""
        calm_s = self._world.now - self.last_fault_at - self._plans[name].ready_timeout_s
        cause = attempt.end.cause if attempt.end is not None else ""
        was_hit = self.chains is not None and self.chains.was_hit(name)
        if calm_s > _SETTLED_S and not was_hit and cause in (Cause.NEVER_READY, Cause.NODE_LOST, Cause.UNKNOWN):
            self._fail(f"{name} attempt {attempt.number} ends by {cause}, {calm_s:.0f} s after things were calm again")

    def _check_cause(self, record: Record) -> None:
        """Where nothing interfered, the cause of an attempt is that of the first process that ended badly."""
        name, number = record.data["task"], record.data["attempt"]
        attempt = self.facts.task(name).attempts[number]
        self._check_calm(name, attempt)
        begun = min((at for key, at in self._ready.items() if key[:2] == (name, number)), default=self._world.now)
        if self.last_fault_at >= begun or self.has_clock_jump or attempt.end is None:
            return
        stated = attempt.end
        first = _first_bad(attempt)
        if (
            first is not None
            and stated.cause not in _ASKED
            and not (self._site is not None and stated.cause == first.cause)
            and (stated.cause, stated.rank) != (first.cause, first.rank)
        ):
            self._fail(
                f"{name} attempt {number} is said to end by {stated.cause} of rank {stated.rank}, it was {first.cause} of rank {first.rank}"
            )
        if first is None and stated.cause not in {Cause.OK, *_LEADERS_OWN}:
            self._fail(f"{name} attempt {number} is said to end by {stated.cause}, and no process of it did")

    def _fail(self, message: str) -> None:
        raise Violation(message)


_CHECKS = {
    events.ATTEMPT_STARTED: Monitor._attempt_started,
    events.PROCESS_STARTING: Monitor._process_starting,
    events.JOB_LOST: Monitor._job_lost,
    events.STOP_REQUESTED: Monitor._stop_requested,
    events.JOB_INTENDED: Monitor._job_intended,
    events.TASK_ENDED: Monitor._task_ended,
}


def _first_bad(attempt: Attempt) -> End | None:
    ends = [replica.end for replica in attempt.replicas.values() if replica.end is not None]
    bad = [end for end in ends if end.cause != Cause.OK and end.cause not in _ASKED]
    return min(bad, key=lambda end: (end.at, end.rank), default=None)
