"""Page and `--json` data for one run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from windlass.cli.error_table import codes
from windlass.cli.render.progress import describe_end
from windlass.cli.render.verdict import STATE_STYLES, first_failure, next_step
from windlass.cli.screen import paint, printable
from windlass.core.phrases import ago, count, duration, local_time, number, size
from windlass.record.evaluation import Evaluation, EvaluationState, evaluations
from windlass.record.retry import Budgets
from windlass.record.state import Attempt, End, RunFacts, State, TaskFacts
from windlass.runs import metrics
from windlass.runs.pending import PendingAction
from windlass.runs.recovery import missing_records
from windlass.runs.store import RunFolder

__all__ = ["run_data", "run_page"]

_WIDTH = 13


def run_data(
    run: RunFolder, facts: RunFacts, waits: Mapping[str, str] | None = None, pending: Sequence[PendingAction] = ()
) -> dict[str, object]:
    """Return all data for `show --json`; times are seconds since 1970 UTC, or 0 if unknown.

    Args:
        waits: why each task's job is queued or suspended, by task.
        pending: actions the run needs that a read-only command does not do.
    """
    waits = waits or {}
    return {
        "run": run.id,
        "name": facts.name,
        "why": facts.why,
        "state": str(facts.state),
        "cause": facts.cause,
        "pending": [one.to_data() for one in pending],
        "damage": missing_records(run.path, facts) if facts.state.is_terminal else list(facts.damage),
        "plan_hash": facts.plan_hash,
        "created_at": facts.created_at,
        "updated_at": facts.updated_at,
        "ended_at": facts.ended_at,
        "path": str(run.path),
        "locator": _locator(facts),
        "tasks": {name: _task_data(facts, task, waits.get(name, "")) for name, task in facts.tasks.items()},
        "outputs": {name: _output_data(run, facts, name) for name in facts.tasks},
        "metrics": {
            name: {"step": point.step, "value": point.value, "at": point.time}
            for name, point in metrics.last(run).items()
        },
        "notes": [{"at": at, "task": task, "message": message} for at, _, _, task, message in facts.notes],
    }


def _locator(facts: RunFacts) -> str:
    """Return the backend's address of the newest job, or an empty string before the first job."""
    jobs = [task.jobs[task.newest_job] for task in facts.tasks.values() if task.jobs]
    return max((job.locator for job in jobs if job.locator), default="")


def _task_data(facts: RunFacts, task: TaskFacts, wait: str) -> dict[str, object]:
    end, waits = task.end, _waits(task)
    return {
        "state": str(task.state),
        "cause": end[1] if end else "",
        "message": end[2] if end else "",
        "ended_at": end[3] if end else 0.0,
        "reason": wait or task.reason,
        "after": list(task.after),
        "num_replicas": task.num_replicas,
        "jobs": [
            {
                "number": job.number,
                "backend": job.backend,
                "backend_id": job.backend_id,
                "links": [vars(job.links[number]) for number in sorted(job.links)],
            }
            for job in task.jobs.values()
        ],
        "avoids": task.avoided,
        "evaluations": _evaluations_data(facts, task),
        "waits_for": {"what": waits[0], "since": waits[1]} if waits else None,
        "attempts": [_attempt_data(task.attempts[number]) for number in sorted(task.attempts)],
        "checkpoint": {"step": task.newest_checkpoint.step, "path": task.newest_checkpoint.path}
        if task.newest_checkpoint.path
        else None,
    }


def _waits(task: TaskFacts) -> tuple[str, float] | None:
    """Return what a running task waits for by its own words, and since when; None if for nothing."""
    newest = task.newest_attempt
    if task.end or newest is None or newest.end is not None or not task.waits[1] or task.waits[0] < newest.started_at:
        return None
    return task.waits[1:]


def _evaluations(facts: RunFacts, task: TaskFacts) -> list[Evaluation]:
    """Return the evaluations of a task; the best checkpoint is among them once its evaluation has begun."""
    if task.evaluates is None:
        return []
    budgets = Budgets(*facts.budgets.get(task.name, (50, 0)))
    return evaluations(task, facts.tasks.get(task.evaluates.of, TaskFacts(task.evaluates.of)), budgets)


def _evaluations_data(facts: RunFacts, task: TaskFacts) -> list[dict[str, object]]:
    return [
        {
            "step": each.checkpoint.step,
            "path": each.checkpoint.path,
            "digest": each.digest,
            "state": str(each.state),
            "attempt": each.attempt,
            "message": each.message,
        }
        for each in _evaluations(facts, task)
    ]


def _evaluation_lines(facts: RunFacts, task: TaskFacts) -> Iterator[str]:
    """Yield the number of evaluations by state, and a line for each one that is not done."""
    found = _evaluations(facts, task)
    if task.evaluates is None:
        return
    counts = Counter(str(each.state) for each in found)
    parts = [f"{counts[state]} {state}" for state in map(str, EvaluationState) if counts[state]]
    of = f"checkpoints of task {task.evaluates.of}"
    yield _line("  evaluates", f"{of}: {', '.join(parts) or 'none yet'}")
    for each in found:
        if each.state is not EvaluationState.DONE:
            yield _line("", printable(each.text()))


def _attempt_data(attempt: Attempt) -> dict[str, object]:
    return {
        "number": attempt.number,
        "job": attempt.job,
        "link": attempt.link,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "hosts": {str(rank): replica.host for rank, replica in sorted(attempt.replicas.items())},
        "end": _end_data(attempt.end) if attempt.end is not None else None,
        "checkpoint_step": attempt.checkpoint_step,
    }


def _end_data(end: End) -> dict[str, object]:
    return {**End(end.cause).to_data(), **replace(end, tail=()).to_data(), "tail": list(end.tail)}


def _output_data(run: RunFolder, facts: RunFacts, task: str) -> dict[str, object]:
    found = facts.outputs.get(task)
    known = {"num_files": found[1], "bytes": found[2], "digest": found[3]} if found else {}
    return {"path": str(run.out(task)), **known}


def run_page(
    run: RunFolder, facts: RunFacts, waits: Mapping[str, str] | None = None, pending: Sequence[PendingAction] = ()
) -> Iterator[str]:
    """Yield the lines of `windlass show`; `waits` and `pending` are as in `run_data`."""
    waits = waits or {}
    now = time.time()
    state = facts.state
    because = f": {facts.cause}" if facts.cause not in ("", "ok") else ""
    yield _line("run", paint(run.id, "bold"))
    if facts.why:
        yield _line("why", printable(facts.why))
    yield _line("state", paint(str(state), STATE_STYLES.get(state, "cyan")) + because)
    for line in missing_records(run.path, facts) if facts.state.is_terminal else facts.damage:
        yield _line("damage", printable(line))
    for one in pending:
        yield _line("needs", printable(f"{one.task}: {one.what}" if one.task else one.what))
    for name, task in facts.tasks.items():
        reason = waits.get(name) or task.reason
        if reason:
            yield _line("waits", printable(f"{name}: {reason}"))
    yield from _failure(facts)
    yield from _next(run, facts, pending)
    yield ""
    if facts.created_at:
        until = facts.ended_at or now
        took = duration(until - facts.created_at)
        yield _line("created", f"{local_time(facts.created_at)} ({ago(facts.created_at, now)})")
        yield _line("took" if facts.ended_at else "so far", f"{took}, {count(facts.num_attempts, 'attempt')}")
    yield _line("plan", facts.plan_hash[:12])
    yield from _made_from(run)
    yield _line("folder", str(run.path))
    if _locator(facts):
        yield _line("locator", _locator(facts))
    yield from _last_output(facts)
    for name, task in facts.tasks.items():
        yield ""
        yield from _task_lines(run, facts, name, task)
    yield from _metrics(run)
    for _, _, _, task_name, message in facts.notes:
        yield _line("note", printable(f"{task_name}: {message}" if task_name else message))


def _made_from(run: RunFolder) -> Iterator[str]:
    from windlass.cli.render.made_from import made_from  # lazy: reads the plan, which `--json` does not need

    for label, text in made_from(run):
        yield _line(label, printable(text))


def _line(label: str, text: str) -> str:
    return f"{label:<{_WIDTH - 1}} {text}"


def _failure(facts: RunFacts) -> Iterator[str]:
    found = first_failure(facts)
    if found is None:
        return
    task, attempt = found
    end = attempt.end
    assert end is not None  # guaranteed by first_failure
    yield _line("failure", printable(f"task {task}, attempt {attempt.number}: {describe_end(end)}"))


def _last_output(facts: RunFacts) -> Iterator[str]:
    """Yield the failed process's traceback or, without one, its last lines."""
    found = first_failure(facts)
    end = found[1].end if found is not None else None
    if end is None:
        return
    lines = end.traceback.rstrip("\n").split("\n") if end.traceback else list(end.tail[-10:])
    if lines:
        yield ""
    for index, line in enumerate(lines):
        yield _line("log" if index == 0 else "", printable(line))


def _task_lines(run: RunFolder, facts: RunFacts, name: str, task: TaskFacts) -> Iterator[str]:
    end = task.end
    state = paint(str(task.state), STATE_STYLES.get(task.state, "cyan"))
    shown_above = first_failure(facts)  # shown in full above
    known = shown_above[1].end.message if shown_above is not None and shown_above[1].end is not None else ""
    detail = f", {end[2]}" if end and end[2] not in ("", known) else ""
    because = f": {end[1]}{detail}" if end and end[0] is not State.SUCCEEDED else ""
    replicas = f"   {count(task.num_replicas, 'replica')}" + (f", after {', '.join(task.after)}" if task.after else "")
    yield _line(f"task {name}", f"{state}{printable(because)}{replicas}")
    job = task.jobs.get(task.newest_job)
    if job is not None and len(job.links) > 1:
        queued = [link.number for link in job.links.values() if not link.started_at]
        behind = f", {count(len(queued), 'link')} queued after it" if queued and not end else ""
        yield _line("  chain", f"{count(len(job.links) - len(queued), 'link')} started{behind}")
    yield from _evaluation_lines(facts, task)
    for host, why in sorted(task.avoided.items()):
        yield _line("  avoids", printable(f"{host}: {why}"))
    for number_ in sorted(task.attempts):
        is_above = shown_above is not None and shown_above[1] is task.attempts[number_]
        yield _line(f"  attempt {number_}", printable(_attempt_line(task.attempts[number_], is_above=is_above)))
    if task.newest_checkpoint.path:
        step, path = task.newest_checkpoint
        yield _line("  checkpoint", printable(f"{'step ' + str(step) + '  ' if step >= 0 else ''}{path}"))
    elif task.phase[1]:
        yield _line("  phase", f"{task.phase[1]}" + (f", step {task.phase[2]}" if task.phase[2] >= 0 else ""))
    waits = _waits(task)
    if waits:
        yield _line("  waits for", printable(f"{waits[0]}, since {local_time(waits[1])}"))
    if name in facts.outputs and facts.outputs[name][1]:
        _, num_files, num_bytes, digest = facts.outputs[name]
        is_elsewhere = run.is_mirrored and not run.out(name).exists()
        where = f"fetch them with `windlass outputs fetch {run.id}`:" if is_elsewhere else str(run.out(name))
        yield _line("  outputs", f"{where}  {count(num_files, 'file')}, {size(num_bytes)}, sha256:{digest[:12]}")


def _attempt_line(attempt: Attempt, *, is_above: bool) -> str:
    """Return a line about one attempt, with only its cause if the failure is shown in full above."""
    hosts = sorted({replica.host for replica in attempt.replicas.values() if replica.host})
    where = f" on {', '.join(hosts[:4])}{', ...' if len(hosts) > 4 else ''}" if hosts else ""
    if not attempt.started_at:
        return f"did not start{where}" + (f": {describe_end(attempt.end)}" if attempt.end else "")
    if attempt.end is None:
        evaluates = f", evaluates step {attempt.evaluates.step}" if attempt.evaluates.path else ""
        return f"running{where} since {local_time(attempt.started_at)}{evaluates}"
    spent = duration(attempt.ended_at - attempt.started_at)
    step = attempt.checkpoint_step if attempt.checkpoint_step >= 0 else attempt.last_entry.step
    saved = f", saved step {step}" if step >= 0 else ""
    saved = f", evaluated step {attempt.evaluates.step}" if attempt.evaluates.path else saved
    return f"{spent}{where}, {attempt.end.cause if is_above else describe_end(attempt.end)}{saved}"


def _metrics(run: RunFolder) -> Iterator[str]:
    last = metrics.last(run)
    if last:
        yield ""
    for index, (name, point) in enumerate(last.items()):
        at = f" at step {point.step}" if point.step >= 0 else ""
        yield _line("metrics" if index == 0 else "", f"{name} {number(point.value)}{at}")


def _next(run: RunFolder, facts: RunFacts, pending: Sequence[PendingAction]) -> Iterator[str]:
    does = [one.then for one in pending if one.then]
    if does:
        yield ""
        yield _line("next", f"windlass show {run.id} --reconcile   {'; '.join(does)}")
        return
    found = first_failure(facts)
    step = next_step(run.id, facts, found[0] if found is not None else "")
    if step:
        yield _line("next", step)
    if facts.state is State.FAILED and facts.cause in codes():
        yield _line("more", f"windlass explain {facts.cause}")
