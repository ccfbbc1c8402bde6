"""Fields that each kind of record requires; a record without them is damaged.

Only facts that are read are listed, so a record of a later version with more facts is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from windlass.record import events
from windlass.record.frames import Record
from windlass.record.lifecycle import State

__all__ = ["is_well_formed"]

_Types = Union[type, "tuple[type, ...]"]
_STEP = (int, type(None))
_OF_RANK: dict[str, _Types] = {"task": str, "attempt": int, "rank": int}
_OF_JOB: dict[str, _Types] = {"task": str, "job": int}

_FIELDS: Mapping[str, Mapping[str, _Types]] = {
    events.RUN_CREATED: {"run": str, "name": str, "why": str, "plan_hash": str, "tasks": dict},
    events.JOB_INTENDED: {**_OF_JOB, "token": str, "backend": str, "resets_budgets": bool},
    events.JOB_SUBMITTED: {**_OF_JOB, "backend_id": str, "locator": str},
    events.JOB_REFUSED: {**_OF_JOB, "message": str},
    events.JOB_LOST: {**_OF_JOB, "attempt": int, "cause": str, "message": str},
    events.JOB_GONE: _OF_JOB,
    events.STOP_REQUESTED: {"tasks": dict, "reason": str, "is_checkpoint_wanted": bool},
    events.TASK_QUEUED: {**_OF_JOB, "reason": str},
    events.LINK_QUEUED: {**_OF_JOB, "link": int, "backend_id": str},
    events.LINK_STARTED: {**_OF_JOB, "link": int, "backend_id": str, "incarnation": str, "host": str},
    events.NODE_AVOIDED: {"task": str, "host": str, "reason": str},
    events.ATTEMPT_STARTED: {"task": str, "attempt": int, "address": str, "port": int},
    events.PROCESS_STARTING: _OF_RANK,
    events.PROCESS_STARTED: {**_OF_RANK, "host": str, "process": str},
    events.PROCESS_ENDED: {**_OF_RANK, "end": dict},
    events.ATTEMPT_ENDED: {"task": str, "attempt": int, "epoch": int, "end": dict},
    events.TASK_ENDED: {**_OF_JOB, "verdict": str, "cause": str, "message": str},
    events.CHECKPOINT: {**_OF_RANK, "path": str, "step": int},
    events.EVALUATION_SKIPPED: {"task": str, "path": str, "step": int, "reason": str},
    events.PROGRESS_ENTRY: {"task": str, "attempt": int},
    events.PROGRESS: {**_OF_RANK, "phase": str, "step": _STEP},
    events.METRICS: {**_OF_RANK, "values": dict, "step": _STEP},
    events.FINISH: {**_OF_RANK, "code": int, "cause": str, "message": str},
    events.COOPERATES: _OF_RANK,
    events.OUTPUTS: {"task": str, "attempt": int, "num_files": int, "bytes": int, "digest": str},
    events.NOTE: {"message": str},
}
_OF_END: Mapping[str, _Types] = {"cause": str, "code": int, "rank": int, "host": str, "message": str, "traceback": str}
_VERDICTS = frozenset(str(state) for state in State if state.is_terminal)
_OF_TASK: Mapping[str, _Types] = {"after": list, "replicas": int, "interrupted": int, "failed": int}


def is_well_formed(record: Record) -> bool:
    """Return whether a record has the fields that its kind requires; True for unknown kinds from later versions."""
    fields = _FIELDS.get(record.kind)
    if fields is None:
        return True
    data = record.data
    for name, types in fields.items():
        if name not in data or not isinstance(data[name], types):
            return False
    if "end" in fields:
        return _is_end(data["end"])
    if record.kind == events.RUN_CREATED:
        return all(isinstance(task, dict) and _has(task, _OF_TASK) for task in data["tasks"].values())
    if record.kind == events.TASK_ENDED:
        return data["verdict"] in _VERDICTS
    if record.kind == events.STOP_REQUESTED:
        return all(isinstance(job, int) for job in data["tasks"].values())
    return True


def _is_end(end: Mapping[str, object]) -> bool:
    is_known = "cause" in end and all(isinstance(end[name], types) for name, types in _OF_END.items() if name in end)
    tail = end.get("tail", ())
    return is_known and isinstance(tail, (list, tuple)) and isinstance(end.get("at", 0.0), (int, float))


def _has(found: Mapping[str, object], fields: Mapping[str, _Types]) -> bool:
    return all(name in found and isinstance(found[name], types) for name, types in fields.items())
