"""The shell around `reconcile`: look at a run's jobs, and do what its policy says until nothing is left to do.

Only for commands that may act on the run; one that only looks calls `assess`.
"""

from __future__ import annotations

import os

from windlass.backends import CanSweep, CanUnqueue
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import lock
from windlass.launch.journal import client_journal
from windlass.launch.reconcile.assessment import has_ended, is_settled, next_action
from windlass.launch.reconcile.policy import (
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
from windlass.launch.remote.mirror import Mirror, mirror_of
from windlass.launch.submit import (
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
from windlass.plan import Plan
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.journal import JournalWriter
from windlass.record.state import End, RunFacts, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.runs.witness import missing_records

__all__ = ["NOTHING_DONE", "reconcile_run"]

NOTHING_DONE = "nothing was done"
"""Beginning of the line that says why a run was left alone although it needs something."""

_MAX_ACTIONS = 20


def reconcile_run(run: RunFolder, home: Home) -> list[str]:
    """Bring a run's record in line with the world; returns what was done, in words.

    Cheap when nothing is wrong: one observation per living job. Safe for many clients at once. Never ends what it
    cannot see, and never acts on a record that is damaged.
    """
    facts = run.facts()
    if not (run.path / "plan.json").exists() or is_launching(home, run.id):
        return []
    if is_settled(facts) and not has_secrets(run):
        return []
    if run.path.stat().st_uid != os.geteuid():
        return []  # somebody else's: what we write there could lock its owner out
    plan = Plan.from_data(run.plan())
    mirror = mirror_of(run, plan, home)
    if mirror is not None:
        facts = _exchange(mirror)
    if facts.num_damaged:
        return [f"{NOTHING_DONE} for {run.id}: {facts.num_damaged} records of its journal are damaged"]
    launch_lock(home, run.id).unlink(missing_ok=True)  # of a launching command that was killed
    with lock(run.path / "reconcile.lock"):
        return _carry_out(run, plan, home, mirror)


def _carry_out(run: RunFolder, plan: Plan, home: Home, mirror: Mirror | None) -> list[str]:
    """Do one thing after another until nothing is left to do; each is told to the run's site before the next."""
    done: list[str] = []
    if not run.facts().run or not is_staged(run):
        missing = missing_records(run.path, run.facts())
        if missing:
            return [_left_alone(run, missing)]
        done.append(_inherit(run, plan))
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
        remove_secrets(run, mirror)  # its last supervisor was killed before it could
    return done


def _exchange(mirror: Mirror) -> RunFacts:
    """Hear what a site has to say of a run, and tell it what we said; a run that never got there has nothing to hear."""
    try:
        mirror.pull()
        mirror.push()
    except NotFoundError:
        tasks = mirror.run.facts().tasks.values()
        if any(job.is_submitted for task in tasks for job in task.jobs.values()):
            raise
    return mirror.run.facts()


def _inherit(run: RunFolder, plan: Plan) -> str:
    """Take over a run whose launching command died: it goes on when all it needs is there, and else it ends."""
    with client_journal(run.journal) as journal:
        if not run.facts().run:
            announce(run, plan, journal)
        if is_staged(run):
            return "took over from a launching command that ended too early"
        message = "the command that launched it ended before everything was in place"
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
    return next_action(run, plan, reads_requests=mirror.transport.has_server, hear=lambda: _exchange(mirror))


def _missing(run: RunFolder, task: str, action: Action) -> list[str]:
    """What the journal lacks of a task that an action would go on with; to cancel something needs no whole record."""
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
        assert found is not None  # it was observed
        backend_of(plan).cancel(found)
        return f"took job {action.job} of {task} out of the queue"
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
        message = "left alone by its supervisor; ended by the next command that acted on the run"
        attempt = run.facts().task(task).attempts[action.attempt]
        cause = attempt.end.cause if attempt.end is not None else str(Cause.NODE_LOST)
        cause = str(Cause.NODE_LOST) if cause == Cause.OK else cause
        for rank in action.ranks:
            end = End(cause, rank=rank, message=message).to_data()
            journal.append(events.PROCESS_ENDED, task=task, attempt=action.attempt, rank=rank, end=end)
        return f"ended what job {action.job} of {task} had left behind"
    return _end(task, action, journal)


def _unqueue(run: RunFolder, plan: Plan, task: str, action: Unqueue) -> str:
    backend, found = backend_of(plan), submission_of(run, task, action.job)
    assert found is not None  # it was observed
    if isinstance(backend, CanUnqueue):
        backend.unqueue(found)
    else:
        backend.cancel(found)
    return f"took {', '.join(action.ids)} of job {action.job} of {task} out of the queue"


def _submit(run: RunFolder, plan: Plan, home: Home, task: str, number: int, journal: JournalWriter, done: str) -> str:
    """Submit an intended job; a refusal is on record then, and the next step ends the task."""
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
