"""Policy for tasks that evaluate checkpoints of another task: which checkpoint is next, and when the task is over.

Pure, and a function of the journal alone, so that the leader in the job, clients and the code that deletes checkpoints
agree. An attempt's start names its checkpoint, and is on disk before user code runs; so a checkpoint is evaluated once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.record import events
from windlass.record.causes import Cause, Kind, cause_of, kind_of
from windlass.record.facts import Attempt, EvaluationRule, SavedCheckpoint, TaskFacts
from windlass.record.frames import decode
from windlass.record.journal import SUFFIX
from windlass.record.lifecycle import State
from windlass.record.retry import Budgets
from windlass.record.shapes import is_well_formed

__all__ = [
    "Evaluation",
    "EvaluationState",
    "NextEvaluation",
    "best_checkpoint",
    "evaluations",
    "held_paths",
    "next_evaluation",
    "published_checkpoints",
    "read_values",
]


class EvaluationState(str, Enum):
    """State of the evaluation of one checkpoint."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of one checkpoint.

    Attributes:
        attempt: number of its newest attempt; 0 before the first.
        digest: digest of the checkpoint's manifest when that attempt started; empty if unknown.
        message: why it failed or was skipped.
    """

    checkpoint: SavedCheckpoint
    state: EvaluationState
    attempt: int = 0
    digest: str = ""
    message: str = ""

    def text(self) -> str:
        """Return a line for people, without the checkpoint's folder."""
        name = f"step {self.checkpoint.step}" if self.checkpoint.step >= 0 else self.checkpoint.path
        number = f" (attempt {self.attempt})" if self.attempt else ""
        return f"{name} {self.state}{number}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class NextEvaluation:
    """Next step of a task that evaluates.

    Attributes:
        checkpoint: the checkpoint to evaluate; without a path there is none.
        skipped: checkpoints that are not evaluated because too many wait, oldest first.
        verdict: verdict of the task if it is over.
        reason: why it waits, if it neither evaluates nor is over.
    """

    checkpoint: SavedCheckpoint = SavedCheckpoint()
    skipped: tuple[SavedCheckpoint, ...] = ()
    verdict: State | None = None
    cause: str = ""
    message: str = ""
    reason: str = ""


def published_checkpoints(trained: TaskFacts) -> list[SavedCheckpoint]:
    """Return a task's checkpoints in the order in which they were first recorded.

    Entries that match the task's pattern count only if its code commits no checkpoint itself; their paths are relative.
    """
    has_committed = bool(trained.last_checkpoint.path)
    found = [
        (at, path, step)
        for path, (at, step) in trained.published.items()
        if not has_committed or path not in trained.entries
    ]
    return [SavedCheckpoint(step, path) for at, path, step in sorted(found)]


def evaluations(
    task: TaskFacts, trained: TaskFacts, budgets: Budgets, best: SavedCheckpoint | None = None
) -> list[Evaluation]:
    """Return the evaluations of a task, in the order of the checkpoints.

    Args:
        trained: the task whose checkpoints it evaluates.
        best: the best checkpoint, if `trained` has succeeded and the rule names a metric.
    """
    assert task.evaluates is not None  # the caller has checked that the task evaluates
    published = published_checkpoints(trained)
    selected = _selected(task.evaluates, published, trained, best)
    attempts: dict[str, list[Attempt]] = {}
    for number in sorted(task.attempts):
        attempt = task.attempts[number]
        if attempt.evaluates.path:
            attempts.setdefault(attempt.evaluates.path, []).append(attempt)
    known = {checkpoint.path for checkpoint in published}
    missing = [of[0].evaluates for path, of in attempts.items() if path not in known]
    wanted = [each for each in published if each.path in selected or each.path in attempts] + missing
    reset = max((job.number for job in task.jobs.values() if job.resets_budgets), default=0)
    return [_evaluation(each, attempts.get(each.path, []), task, budgets, reset) for each in wanted]


def _selected(
    rule: EvaluationRule, published: list[SavedCheckpoint], trained: TaskFacts, best: SavedCheckpoint | None
) -> set[str]:
    chosen = published[rule.every - 1 :: rule.every] if rule.every else []
    if trained.state is State.SUCCEEDED:
        chosen = [*chosen, max(published)] if rule.last and published else chosen
        chosen = [*chosen, best] if rule.best and best is not None else chosen
    return {checkpoint.path for checkpoint in chosen}


def _evaluation(
    checkpoint: SavedCheckpoint, attempts: list[Attempt], task: TaskFacts, budgets: Budgets, reset: int
) -> Evaluation:
    done = next((each for each in attempts if each.end is not None and each.end.cause == Cause.OK), None)
    newest = done or (attempts[-1] if attempts else None)
    number, digest = (newest.number, newest.evaluated_digest) if newest is not None else (0, "")
    if done is not None:
        return Evaluation(checkpoint, EvaluationState.DONE, number, digest)
    if newest is not None and newest.end is None:
        return Evaluation(checkpoint, EvaluationState.RUNNING, number, digest)
    skipped = task.skipped.get(checkpoint.path)
    if skipped is not None:
        return Evaluation(checkpoint, EvaluationState.SKIPPED, number, digest, skipped[1])
    counted = [each for each in attempts if each.job >= reset]
    if not counted or not _is_given_up(counted, budgets):
        return Evaluation(checkpoint, EvaluationState.WAITING, number, digest)
    assert newest is not None  # an attempt was counted
    assert newest.end is not None  # handled above
    return Evaluation(checkpoint, EvaluationState.FAILED, number, digest, newest.end.message or newest.end.cause)


def _is_given_up(attempts: list[Attempt], budgets: Budgets) -> bool:
    """Return whether a checkpoint's evaluation is not repeated; each one has the budgets of a task."""
    kinds = [kind_of(cause_of(each.end.cause)) for each in attempts if each.end is not None]
    is_final = any(kind is Kind.FINAL for kind in kinds)
    is_failed = sum(kind is Kind.FAILURE for kind in kinds) > budgets.failed
    return is_final or is_failed or sum(kind is Kind.INTERRUPTION for kind in kinds) > budgets.interrupted


def next_evaluation(
    task: TaskFacts, trained: TaskFacts, budgets: Budgets, best: SavedCheckpoint | None = None
) -> NextEvaluation:
    """Return what a task that evaluates does next: the oldest waiting checkpoint first. Arguments as `evaluations`."""
    rule = task.evaluates
    assert rule is not None  # as above
    found = evaluations(task, trained, budgets, best)
    waiting = [each.checkpoint for each in found if each.state is EvaluationState.WAITING]
    num_skipped = max(0, len(waiting) - rule.max_waiting)
    skipped = tuple(waiting[:num_skipped])
    if waiting:
        return NextEvaluation(waiting[num_skipped], skipped)
    if trained.end is None:
        return NextEvaluation(reason=f"waits for a checkpoint of task {rule.of}")
    if trained.state is not State.SUCCEEDED:
        message = f"task {rule.of}, whose checkpoints it evaluates, did not succeed"
        return NextEvaluation(verdict=State.FAILED, cause=str(Cause.SIBLING_FAILED), message=message)
    return _verdict(task, rule, trained, found, best)


def _verdict(
    task: TaskFacts, rule: EvaluationRule, trained: TaskFacts, found: list[Evaluation], best: SavedCheckpoint | None
) -> NextEvaluation:
    failed = [each for each in found if each.state is EvaluationState.FAILED]
    if failed:
        steps = ", ".join(f"step {each.checkpoint.step}" for each in failed[:4]) + (", ..." if failed[4:] else "")
        message = f"{len(failed)} of {len(found)} evaluations failed ({steps}): {failed[-1].message}"
        end = task.attempts[failed[-1].attempt].end
        return NextEvaluation(verdict=State.FAILED, cause=end.cause if end else str(Cause.UNKNOWN), message=message)
    problem = ""
    if not trained.published:
        problem = f"task {rule.of} published no checkpoint"
    elif rule.best and best is None:
        problem = f"no checkpoint of task {rule.of} has a value of `{rule.best}`"
    if problem:
        return NextEvaluation(verdict=State.FAILED, cause=str(Cause.USER_ERROR), message=problem)
    return NextEvaluation(verdict=State.SUCCEEDED, cause=str(Cause.OK))


def held_paths(tasks: Iterable[TaskFacts], trained: TaskFacts, values: dict[str, dict[int, float]]) -> set[str]:
    """Return the checkpoints of `trained` that must not be deleted, because an evaluation of them is not over.

    Args:
        tasks: the tasks that evaluate `trained`.
        values: metrics by name and step, for rules with `best`.
    """
    held = set()
    for task in tasks:
        if task.evaluates is None or task.end is not None:
            continue
        budgets = Budgets(10**6, 10**6)  # the exact budgets are the leader's; this only keeps a failed one longer
        waits = (EvaluationState.WAITING, EvaluationState.RUNNING)
        held |= {each.checkpoint.path for each in evaluations(task, trained, budgets) if each.state in waits}
        rule, published = task.evaluates, published_checkpoints(trained)
        best = best_checkpoint(published, values.get(rule.best, {}), rule.mode) if rule.best else None
        held |= {best.path} if best is not None else set()
        held |= {max(published).path} if rule.last and published else set()
    return held


def best_checkpoint(
    published: Iterable[SavedCheckpoint], values: dict[int, float], mode: str
) -> SavedCheckpoint | None:
    """Return the checkpoint with the best value; of equal ones the first.

    The value of a checkpoint is the last one reported at or before its step. NaN and infinities do not count.

    Args:
        values: the metric by step.
    """
    steps = sorted(values)
    rated = []
    for order, checkpoint in enumerate(published):
        before = [step for step in steps if 0 <= step <= checkpoint.step]
        value = values[before[-1]] if before else math.nan
        if math.isfinite(value):
            rated.append((value if mode == "min" else -value, order, checkpoint))
    return min(rated)[2] if rated else None


def read_values(journal: Path, task: str, name: str) -> dict[int, float]:
    """Return a metric of a task by step, from the journal; later attempts and lower ranks take precedence. Blocking."""
    needle = json.dumps(name).encode("ascii") + b":"
    found: dict[int, tuple[int, int, float]] = {}
    for path in sorted(journal.glob(f"{task}.*{SUFFIX}")):
        with open(str(path), "rb") as lines:
            for line in lines:
                record = decode(line) if needle in line else None
                if record is None or record.kind != events.METRICS or not is_well_formed(record):
                    continue
                data = record.data
                if data["task"] != task or name not in data["values"] or data["step"] is None:
                    continue
                said = (data["attempt"], -data["rank"], float(data["values"][name]))
                known = found.get(data["step"])
                found[data["step"]] = said if known is None or said[:2] >= known[:2] else known
    return {step: value for step, (_, _, value) in found.items()}
