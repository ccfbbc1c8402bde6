"""Assessment of the actions that a run needs from a client, without changing anything.

`reconciler.reconcile_run` carries them out; read-only commands print them. The commands are listed in
docs/decisions/0021-commands-that-look-change-nothing.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.backends import JobState, Observation
from windlass.core.errors import NotFoundError
from windlass.launcher.client import Client
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
    after_end,
    has_loose_ends,
    reconcile,
)
from windlass.launcher.submit import submission_of
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.retry import Budgets
from windlass.record.state import RunFacts, TaskFacts, jobs_to_let_go
from windlass.runs.home import Home
from windlass.runs.pending import Assessment, PendingAction
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.ports import ClientPorts

__all__ = ["LOOK_S", "assess", "has_ended", "is_settled", "next_action", "was_staged"]


LOOK_S = 5.0
"""Longest time that a read-only command waits for a site's scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Backend's observations of a run's jobs.

    Attributes:
        newest: newest job by task.
        left: jobs, by (task, job), that may still be queued although their task has ended.
    """

    newest: Mapping[str, Observation]
    left: Mapping[tuple[str, int], Observation]


def assess(run: RunFolder, home: Home) -> Assessment:
    """Return the actions that a run needs, and its suspended jobs. Changes nothing.

    Queries the backend once if the run is active.

    Raises:
        UnreachableError: the backend cannot be reached.
    """
    client = Client(run, home)
    files = client.files
    nothing = Assessment()
    facts = files.facts()
    if not files.has_plan() or files.is_launching():
        return nothing
    if is_settled(facts) and not files.has_secrets():
        return nothing
    if not files.is_own():
        return nothing  # owned by another user: a scheduler may hide its jobs
    if run.is_mirrored:
        _pull_mirror(client)
    facts = files.facts()
    if not facts.run or not was_staged(client, facts):
        return Assessment(pending=(_unfinished_launch(client, facts),))
    seen = _observe(client, facts, patience_s=LOOK_S)
    facts = files.facts()
    found = [each for each in _actions(client, facts, seen, reads_requests=True) if not isinstance(each[1], RecordGone)]
    pending = [_in_words(client, facts, seen, *each) for each in found]
    held = [name for name in jobs_to_let_go(facts) if name not in {task for task, _ in found}]
    pending += [
        PendingAction(task=name, what="is held in the queue although its predecessors have ended", then="releases it")
        for name in held
    ]
    if has_ended(facts) and files.has_secrets():
        pending.append(
            PendingAction(task="", what="has ended, and its delivered secrets still exist", then="removes them")
        )
    suspended = {name: each.suspended for name, each in seen.newest.items() if each.suspended}
    unseen = {name: why for name, each in seen.newest.items() if (why := _why_unseen(each))}
    return Assessment(pending=tuple(pending), suspended=suspended, unseen=unseen)


def was_staged(ports: ClientPorts, facts: RunFacts) -> bool:
    """Return whether all of a run's files were staged.

    Jobs are recorded only after that, whatever was deleted since.
    """
    return ports.files.is_staged() or any(task.jobs for task in facts.tasks.values())


def has_ended(facts: RunFacts) -> bool:
    """Return whether a run and all its recorded processes have ended."""
    return facts.state.is_terminal and not any(has_loose_ends(task) for task in facts.tasks.values())


def is_settled(facts: RunFacts) -> bool:
    """Return whether a run has ended and its record shows no remaining jobs."""
    return has_ended(facts) and not any(task.jobs_left for task in facts.tasks.values())


def next_action(
    ports: ClientPorts, *, reads_requests: bool, pull: Callable[[], object] | None = None
) -> tuple[str, Action] | None:
    """Return a run's next action and its task, or None. Jobs are observed before facts are read.

    Args:
        reads_requests: whether running jobs read clients' requests.
        pull: fetches records that a job wrote at its site between the last pull and its end.
    """
    seen = _observe(ports, ports.files.facts())
    if pull is not None and any(found.state is JobState.GONE for found in seen.newest.values()):
        pull()
    return next(_actions(ports, ports.files.facts(), seen, reads_requests=reads_requests), None)


def _pull_mirror(ports: ClientPorts) -> None:
    """Pull new records of a run from its site, if it was ever sent there."""
    if ports.site is None:
        return
    try:
        ports.site.pull()
    except NotFoundError:
        if any(job.is_submitted for task in ports.files.facts().tasks.values() for job in task.jobs.values()):
            raise


def _observe(ports: ClientPorts, facts: RunFacts, *, patience_s: float | None = None) -> _Seen:
    newest = {name: task.newest_job for name, task in facts.tasks.items() if not task.end or has_loose_ends(task)}
    wanted = {*newest.items(), *((name, job) for name, task in facts.tasks.items() for job in task.jobs_left)}
    found = {key: submission_of(ports.files, *key) for key in sorted(wanted)}
    known = {key: submission for key, submission in found.items() if submission is not None}
    seen = ports.backend(patience_s=patience_s).observe(list(known.values())) if known else {}
    observed = {key: seen[submission.backend_id] for key, submission in known.items()}
    unknown = Observation(state=JobState.UNKNOWN)
    return _Seen(
        newest={name: observed.get((name, job), unknown) for name, job in newest.items()},
        left={
            (name, job): observed[name, job]
            for name, task in facts.tasks.items()
            for job in task.jobs_left
            if (name, job) in observed
        },
    )


def _actions(ports: ClientPorts, facts: RunFacts, seen: _Seen, *, reads_requests: bool) -> Iterator[tuple[str, Action]]:
    """Yield actions for tasks and leftover jobs; after carrying one out, observe the jobs again."""
    for name, task in facts.tasks.items():
        action = _action_for(ports, facts, task, seen, reads_requests=reads_requests)
        if action is not None:
            yield name, action
    now = ports.clock.now()
    for (name, job), observed in seen.left.items():
        action = after_end(facts.tasks[name], job, observed, now) if job in facts.tasks[name].jobs_left else None
        if action is not None:
            yield name, action


def _action_for(
    ports: ClientPorts, facts: RunFacts, task: TaskFacts, seen: _Seen, *, reads_requests: bool
) -> Action | None:
    observed = seen.newest.get(task.name, Observation(state=JobState.UNKNOWN))
    budgets = Budgets(*facts.budgets.get(task.name, (50, 0)))
    return reconcile(task, observed, budgets, ports.plan.task(task.name).chain.num_links, reads_requests=reads_requests)


# --- in words -----------------------------------------------------------------------------------------------------


def _why_unseen(seen: Observation) -> str:
    if seen.state is JobState.UNKNOWN:
        return seen.detail
    return f"{seen.detail}, but {seen.signs}: the job is not considered lost" if seen.signs else ""


def _unfinished_launch(ports: ClientPorts, facts: RunFacts) -> PendingAction:
    missing = ports.files.missing_records(facts)
    if missing:
        return _damaged("", missing)
    if ports.files.is_staged():
        return PendingAction(task="", what="the command that launched it was interrupted", then="submits its jobs")
    what = "the command that launched it ended before all files were staged"
    return PendingAction(task="", what=what, then="records its end: failed (start-failed)")


def _damaged(task: str, missing: list[str]) -> PendingAction:
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return PendingAction(task=task, what=f"its record is damaged: {missing[0]}{more}", then="")


def _in_words(ports: ClientPorts, facts: RunFacts, seen: _Seen, task: str, action: Action) -> PendingAction:
    missing = ports.files.missing_records(facts) if not facts.tasks[task].end else []
    if missing and not isinstance(action, Cancel):
        return _damaged(task, missing)
    what = _what(action)
    then = _after_loss(ports, facts, seen, task, action) if isinstance(action, MarkLost) else _then(action)
    return PendingAction(task=task, what=what, then=then)


def _what(action: Action) -> str:
    """Describe why an action is needed."""
    if isinstance(action, Submit):
        return f"job {action.job} was not submitted"
    if isinstance(action, MarkLost):
        return f"job {action.job} is gone: {action.message}"
    if isinstance(action, NextJob):
        return "its job is gone and the task is not finished" if action.job > 1 else "it has no job"
    if isinstance(action, EndTask):
        return f"job {action.job} is over: {action.message or action.cause}"
    if isinstance(action, EndLeftovers):
        return f"job {action.job} is gone and may have left processes"
    if isinstance(action, Unqueue):
        return f"has ended, and {', '.join(action.ids)} of job {action.job} is still queued"
    return f"was stopped or has ended, and job {action.job} still exists"


def _then(action: Action) -> str:
    if isinstance(action, Submit | NextJob):
        return f"submits job {action.job}"
    if isinstance(action, EndTask):
        return f"records its end: {action.verdict} ({action.cause})"
    if isinstance(action, EndLeftovers):
        return "kills them"
    return "cancels it"


def _after_loss(ports: ClientPorts, facts: RunFacts, seen: _Seen, task: str, action: MarkLost) -> str:
    """Describe what follows a lost job, by applying the policy to a copy of the facts."""
    later = copy.deepcopy(facts)
    data = {
        "task": task,
        "job": action.job,
        "attempt": action.attempt,
        "cause": str(action.cause),
        "message": action.message,
    }
    later.apply(Record(events.JOB_LOST, "assess", 1, ports.clock.now(), data))
    follows = _action_for(ports, later, later.tasks[task], seen, reads_requests=True)
    if isinstance(follows, EndTask):
        return f"records that and its end: {follows.verdict} ({follows.cause})"
    return f"records that and {_then(follows)}" if follows is not None else "records that"
