"""Reconcile a run: observe its jobs and carry out the policy's actions until none is left.

Used by commands that may act on the run; read-only commands call `assess`.
"""

from __future__ import annotations

import os

from windlass.backends import CanSweep, CanUnqueue
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import lock
from windlass.launcher.journal import client_journal
from windlass.launcher.reconcile.assessment import has_ended, is_settled, next_action
from windlass.launcher.reconcile.policy import (
    Action,
    Cancel,
    EndLeftovers,
    EndTask,
    MarkLost,
    NextJob,
    RecordGone,
    Submit,
    Unqueue,
)
from windlass.launcher.remote.mirror import Mirror, mirror_of
from windlass.launcher.submit import (
    announce,
    backend_of,
    deliver_secrets,
    has_secrets,
    intend,
    is_launching,
    is_staged,
    launch_lock,
    let_go,
    remove_secrets,
    submission_of,
    submit_intended,
)
from windlass.plan.plan import Plan
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.journal import JournalWriter
from windlass.record.state import End, RunFacts, State
from windlass.runs.home import Home
from windlass.runs.recovery import missing_records
from windlass.runs.store import RunFolder

__all__ = ["NOTHING_DONE", "reconcile_run"]

NOTHING_DONE = "nothing was done"
"""Start of the line that explains why no action was taken on a run that needs one."""

_MAX_ACTIONS = 20


def reconcile_run(run: RunFolder, home: Home) -> list[str]:
    """Compare a run's record with its jobs, act on differences, and describe the actions.

    Cheap if nothing is wrong: one observation per active job. Safe for concurrent clients. Never ends a job that cannot
    be observed, and never acts on a damaged record.
    """
    facts = run.facts()
    if not (run.path / "plan.json").exists() or is_launching(home, run.id):
        return []
    if is_settled(facts) and not has_secrets(run):
        return []
    if run.path.stat().st_uid != os.geteuid():
        return []  # owned by another user: files written here could block its owner
    plan = Plan.from_data(run.plan())
    mirror = mirror_of(run, plan, home)
    if mirror is not None:
        facts = _exchange(mirror)
    if facts.num_damaged:
        return [f"{NOTHING_DONE} for {run.id}: {facts.num_damaged} records of its journal are damaged"]
    launch_lock(home, run.id).unlink(missing_ok=True)  # left by a killed launch command
    with lock(run.path / "reconcile.lock"):
        return _carry_out(run, plan, home, mirror)


def _carry_out(run: RunFolder, plan: Plan, home: Home, mirror: Mirror | None) -> list[str]:
    """Carry out actions until none is left, pushing each to the run's site."""
    done: list[str] = []
    if not run.facts().run or not is_staged(run):
        missing = missing_records(run.path, run.facts())
        if missing:
            return [_left_alone(run, missing)]
        done.append(_take_over_launch(run, plan))
        if mirror is not None:
            _exchange(mirror)
    for _ in range(_MAX_ACTIONS):
        step = _next_step(run, plan, mirror)
        if step is None:
            break
        missing = _missing(run, *step)
        if missing:
            done.append(_left_alone(run, missing))
            break
        with client_journal(run.journal) as journal:
            done += [line for line in (_do(run, plan, home, *step, journal),) if line]
        if mirror is not None:
            mirror.push()
    let_go(run, plan)
    if has_ended(run.facts()):
        remove_secrets(run, mirror)  # its last supervisor was killed before doing this
    return done


def _exchange(mirror: Mirror) -> RunFacts:
    """Pull from and push to a run's site, if the run was ever sent there."""
    try:
        mirror.pull()
        mirror.push()
    except NotFoundError:
        tasks = mirror.run.facts().tasks.values()
        if any(job.is_submitted for task in tasks for job in task.jobs.values()):
            raise
    return mirror.run.facts()


def _take_over_launch(run: RunFolder, plan: Plan) -> str:
    """Take over an interrupted launch: continue it if its files are staged, else end it."""
    with client_journal(run.journal) as journal:
        if not run.facts().run:
            announce(run, plan, journal)
        if is_staged(run):
            return "took over an interrupted launch"
        message = "the command that launched it ended before all files were staged"
        for task in plan.tasks:
            journal.append(
                events.TASK_ENDED,
                task=task.name,
                job=0,
                attempt=0,
                verdict=str(State.FAILED),
                cause=str(Cause.START_FAILED),
                message=message,
            )
    return message


def _next_step(run: RunFolder, plan: Plan, mirror: Mirror | None) -> tuple[str, Action] | None:
    if mirror is None:
        return next_action(run, plan, reads_requests=True)
    return next_action(run, plan, reads_requests=mirror.transport.has_server, pull=lambda: _exchange(mirror))


def _missing(run: RunFolder, task: str, action: Action) -> list[str]:
    """Return records that an action needs and the journal lacks; none if it only cancels."""
    facts = run.facts()
    if facts.tasks[task].end or isinstance(action, Cancel):
        return []
    return missing_records(run.path, facts)


def _left_alone(run: RunFolder, missing: list[str]) -> str:
    return f"{NOTHING_DONE} for {run.id}: {missing[0]}"


def _do(run: RunFolder, plan: Plan, home: Home, task: str, action: Action, journal: JournalWriter) -> str:
    if isinstance(action, Submit):
        return _submit(run, plan, home, task, action.job, journal, f"submitted job {action.job} of {task} again")
    if isinstance(action, Cancel):
        found = submission_of(run, task, action.job)
        assert found is not None  # it has been observed
        backend_of(plan).cancel(found)
        return f"cancelled job {action.job} of {task}"
    if isinstance(action, Unqueue):
        return _unqueue(run, plan, task, action)
    if isinstance(action, RecordGone):
        journal.append(events.JOB_GONE, task=task, job=action.job)
        return ""
    if isinstance(action, MarkLost):
        _sweep(run, plan, task, action.job)
        journal.append(
            events.JOB_LOST,
            task=task,
            job=action.job,
            attempt=action.attempt,
            cause=str(action.cause),
            message=action.message,
        )
        return f"job {action.job} of {task} was lost: {action.message}"
    if isinstance(action, NextJob):
        deliver_secrets(run, plan, home)
        intend(run, plan, {task: action.job}, journal, resets_budgets=False)
        return _submit(run, plan, home, task, action.job, journal, f"submitted job {action.job} of {task}")
    if isinstance(action, EndLeftovers):
        _sweep(run, plan, task, action.job)
        message = "its supervisor was killed; the next command that acted on the run killed it"
        attempt = run.facts().task(task).attempts[action.attempt]
        cause = attempt.end.cause if attempt.end is not None else str(Cause.NODE_LOST)
        cause = str(Cause.NODE_LOST) if cause == Cause.OK else cause
        for rank in action.ranks:
            end = End(cause, rank=rank, message=message).to_data()
            journal.append(events.PROCESS_ENDED, task=task, attempt=action.attempt, rank=rank, end=end)
        return f"killed leftover processes of job {action.job} of {task}"
    return _end(task, action, journal)


def _unqueue(run: RunFolder, plan: Plan, task: str, action: Unqueue) -> str:
    backend, found = backend_of(plan), submission_of(run, task, action.job)
    assert found is not None  # it has been observed
    if isinstance(backend, CanUnqueue):
        backend.unqueue(found)
    else:
        backend.cancel(found)
    return f"cancelled {', '.join(action.ids)} of job {action.job} of {task}"


def _submit(run: RunFolder, plan: Plan, home: Home, task: str, number: int, journal: JournalWriter, done: str) -> str:
    """Submit a recorded job; record a refusal, after which the next step ends the task."""
    try:
        submit_intended(run, plan, home, task, number, journal)
    except PreconditionError:
        refusal = run.facts().task(task).jobs[number].refusal
        if not refusal:
            raise
        return f"the place refused job {number} of {task}: {refusal}"
    return done


def _end(task: str, action: EndTask, journal: JournalWriter) -> str:
    journal.append(
        events.TASK_ENDED,
        task=task,
        job=action.job,
        attempt=action.attempt,
        verdict=str(action.verdict),
        cause=action.cause,
        message=action.message,
    )
    return f"{task} {'ended' if action.verdict is State.SUCCEEDED else action.verdict}: {action.cause}"


def _sweep(run: RunFolder, plan: Plan, task: str, number: int) -> None:
    backend, found = backend_of(plan), submission_of(run, task, number)
    if found is not None and isinstance(backend, CanSweep):
        backend.sweep(found)
