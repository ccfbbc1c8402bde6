"""Reconciling of a run: observe its jobs, and carry out the policy's actions until none is left.

Used by commands that may act on the run; read-only commands call `assess`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backends import CanSweep, CanUnqueue
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.launcher.client import Client
from windlass.launcher.reconcile.assessment import has_ended, is_settled, next_action, was_staged
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
from windlass.launcher.submit import announce, intend, let_go, submission_of, submit_intended
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.state import End, RunFacts, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.ports import ClientJournal, ClientPorts, SiteMirror

__all__ = ["NOTHING_DONE", "reconcile_run", "reconcile_through"]

NOTHING_DONE = "nothing was done"
"""Start of the line that explains why no action was taken on a run that needs one."""

_MAX_ACTIONS = 20


def reconcile_run(run: RunFolder, home: Home) -> list[str]:
    """Compare a run's record with its jobs and act on differences; return a line about each action.

    Cheap if nothing is wrong: one observation per active job. Safe for concurrent clients. Never ends a job that cannot
    be observed, and never acts on a damaged record.
    """
    return reconcile_through(Client(run, home))


def reconcile_through(ports: ClientPorts) -> list[str]:
    """Like `reconcile_run`, but through the interfaces in `ports`."""
    files = ports.files
    facts = files.facts()
    if not files.has_plan() or files.is_launching():
        return []
    if is_settled(facts) and not files.has_secrets():
        return []
    if not files.is_own():
        return []  # owned by another user: files written here could block its owner
    if ports.site is not None:
        facts = _exchange(ports, ports.site)
    if facts.num_damaged:
        return [f"{NOTHING_DONE} for {files.id}: {facts.num_damaged} records of its journal are damaged"]
    files.remove_launch_lock()  # left by a killed launch command
    with files.lock():
        return _carry_out(ports)


def _carry_out(ports: ClientPorts) -> list[str]:
    """Carry out actions until none is left, and push the records of each to the run's site."""
    done: list[str] = []
    files = ports.files
    if not files.facts().run or not was_staged(ports, files.facts()):
        missing = files.missing_records(files.facts())
        if missing:
            return [_left_alone(ports, missing)]
        done.append(_take_over_launch(ports))
        if ports.site is not None:
            _exchange(ports, ports.site)
    for _ in range(_MAX_ACTIONS):
        step = _next_step(ports)
        if step is None:
            break
        missing = _missing(ports, *step)
        if missing:
            done.append(_left_alone(ports, missing))
            break
        with files.open_journal() as journal:
            done += [line for line in (_do(ports, *step, journal),) if line]
        if ports.site is not None:
            ports.site.push()
    let_go(ports)
    if has_ended(files.facts()):
        ports.remove_secrets()  # its last supervisor was killed before doing this
    return done


def _exchange(ports: ClientPorts, site: SiteMirror) -> RunFacts:
    """Pull from a run's site and push to it, if the run was ever sent there."""
    try:
        site.pull()
        site.push()
    except NotFoundError:
        tasks = ports.files.facts().tasks.values()
        if any(job.is_submitted for task in tasks for job in task.jobs.values()):
            raise
    return ports.files.facts()


def _take_over_launch(ports: ClientPorts) -> str:
    """Take over an interrupted launch: continue it if its files are staged, otherwise end it."""
    with ports.files.open_journal() as journal:
        if not ports.files.facts().run:
            announce(ports, journal)
        if ports.files.is_staged():
            return "took over an interrupted launch"
        message = "the command that launched it ended before all files were staged"
        for task in ports.plan.tasks:
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


def _next_step(ports: ClientPorts) -> tuple[str, Action] | None:
    site = ports.site
    if site is None:
        return next_action(ports, reads_requests=True)
    return next_action(ports, reads_requests=site.reads_requests, pull=lambda: _exchange(ports, site))


def _missing(ports: ClientPorts, task: str, action: Action) -> list[str]:
    """Describe the records that an action needs and the journal lacks; none if the action only cancels."""
    facts = ports.files.facts()
    if facts.tasks[task].end or isinstance(action, Cancel):
        return []
    return ports.files.missing_records(facts)


def _left_alone(ports: ClientPorts, missing: list[str]) -> str:
    return f"{NOTHING_DONE} for {ports.files.id}: {missing[0]}"


def _do(ports: ClientPorts, task: str, action: Action, journal: ClientJournal) -> str:
    if isinstance(action, Submit):
        return _submit(ports, task, action.job, journal, f"submitted job {action.job} of {task} again")
    if isinstance(action, Cancel):
        found = submission_of(ports.files, task, action.job)
        assert found is not None  # it has been observed
        ports.backend().cancel(found)
        return f"cancelled job {action.job} of {task}"
    if isinstance(action, Unqueue):
        return _unqueue(ports, task, action)
    if isinstance(action, RecordGone):
        journal.append(events.JOB_GONE, task=task, job=action.job)
        return ""
    if isinstance(action, MarkLost):
        _sweep(ports, task, action.job)
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
        ports.deliver_secrets()
        intend(ports, {task: action.job}, journal, resets_budgets=False)
        return _submit(ports, task, action.job, journal, f"submitted job {action.job} of {task}")
    if isinstance(action, EndLeftovers):
        return _end_leftovers(ports, task, action, journal)
    return _end(task, action, journal)


def _end_leftovers(ports: ClientPorts, task: str, action: EndLeftovers, journal: ClientJournal) -> str:
    """Kill what a lost job left behind and record its end, which stays in doubt if nothing can be killed from here."""
    if _sweep(ports, task, action.job):
        doubt, message = {}, "its supervisor was killed; the next command that acted on the run killed it"
        done = f"killed leftover processes of job {action.job} of {task}"
    else:
        doubt, message = {"is_doubtful": True}, "its supervisor was lost, and its job is gone"
        done = f"recorded that job {action.job} of {task} is gone"
    attempt = ports.files.facts().task(task).attempts[action.attempt]
    cause = attempt.end.cause if attempt.end is not None else str(Cause.NODE_LOST)
    cause = str(Cause.NODE_LOST) if cause == Cause.OK else cause
    for rank in action.ranks:
        end = End(cause, rank=rank, message=message).to_data()
        journal.append(events.PROCESS_ENDED, task=task, attempt=action.attempt, rank=rank, end=end, **doubt)
    return done


def _unqueue(ports: ClientPorts, task: str, action: Unqueue) -> str:
    backend, found = ports.backend(), submission_of(ports.files, task, action.job)
    assert found is not None  # it has been observed
    if isinstance(backend, CanUnqueue):
        backend.unqueue(found)
    else:
        backend.cancel(found)
    return f"cancelled {', '.join(action.ids)} of job {action.job} of {task}"


def _submit(ports: ClientPorts, task: str, number: int, journal: ClientJournal, done: str) -> str:
    """Submit a recorded job; if it is refused, record that, and the next step ends the task."""
    try:
        submit_intended(ports, task, number, journal)
    except PreconditionError:
        refusal = ports.files.facts().task(task).jobs[number].refusal
        if not refusal:
            raise
        return f"the place refused job {number} of {task}: {refusal}"
    return done


def _end(task: str, action: EndTask, journal: ClientJournal) -> str:
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


def _sweep(ports: ClientPorts, task: str, number: int) -> bool:
    """Kill what a lost job left behind; return whether this backend can do that."""
    backend, found = ports.backend(), submission_of(ports.files, task, number)
    if found is not None and isinstance(backend, CanSweep):
        backend.sweep(found)
    return isinstance(backend, CanSweep)
