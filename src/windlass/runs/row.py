"""Row for a run in the index and in `windlass ps`, derived from its journal."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import field, fields

from windlass.core.dataclass import dataclass
from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.core.phrases import count
from windlass.record import events
from windlass.record.journal import JournalReader
from windlass.record.state import RunFacts, State
from windlass.runs.recovery import complete, missing_records
from windlass.runs.store import RunFolder, experiment_of

__all__ = ["COLUMNS", "UNKNOWN", "RunRow", "derive"]

_MOST = 2.0**62

_TRIAL = re.compile(r"trial \S+ of sweep (\S+)")
"""Note in the plan of a trial's run."""
UNKNOWN = "unknown"
"""State of a run whose journal cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """Row for a run.

    Attributes:
        state: a `State`, or `unknown` where the journal cannot be read.
        cause: why it ended, a `Cause`; empty while it is active.
        reason: why it waits, in words.
        tasks: the state of each task.
        num_attempts: attempts of the task that needed most.
        overrides: overrides on the command line, as typed.
        note: problem of its folder; empty if there is none.
        may_be_queued: whether it has ended but may still have jobs in a queue.
        site: where it runs, with the partition.
        shape: nodes and GPUs of its largest task: `2x8 gpu`, `1 cpu`.
        progress: finished tasks, if there are several, and the newest step of an unfinished one: `1/2 tasks, step 300`.
        sweep: sweep of which it is a trial; empty for other runs.
    """

    id: str
    name: str
    why: str = ""
    state: str = UNKNOWN
    cause: str = ""
    reason: str = ""
    plan_hash: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float = 0.0
    num_attempts: int = 0
    tasks: Mapping[str, str] = field(default_factory=dict)
    overrides: str = ""
    note: str = ""
    may_be_queued: bool = False
    site: str = ""
    shape: str = ""
    progress: str = ""
    sweep: str = ""

    @property
    def is_terminal(self) -> bool:
        """Return whether the run has ended."""
        return self.state != UNKNOWN and State(self.state).is_terminal

    def to_columns(self) -> tuple[str | float | int, ...]:
        """Return the values for the index's columns, in the order of the fields."""
        return tuple(json.dumps(self.tasks) if name == "tasks" else _column(getattr(self, name)) for name in COLUMNS)

    @classmethod
    def from_columns(cls, columns: tuple[object, ...]) -> RunRow:
        """Decode `to_columns`; raises ValueError for invalid values."""
        values = dict(zip(COLUMNS, columns, strict=True))
        values["tasks"] = decode_json(str(values["tasks"]))
        values["may_be_queued"] = bool(values["may_be_queued"])
        return cls(**values)  # type: ignore[arg-type]  # the columns hold what to_columns put there


def _column(value: str | float) -> str | float:
    """Convert a value for SQLite; bytes that are not UTF-8 are escaped with backslashes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if -_MOST < value < _MOST else 0.0  # an invalid time counts as unknown


COLUMNS = tuple(item.name for item in fields(RunRow))
"""Names of a row's values, in order."""


def derive(run: RunFolder) -> RunRow:
    """Derive a run's row from its folder; any problem becomes a note, never an error."""
    facts, notes = RunFacts(), []
    reader = JournalReader(run.journal, skip=(events.METRICS,))
    try:
        for record in reader.poll():
            facts.apply(record)
        complete(run.path, facts, reader)
        if facts.state.is_terminal:
            notes += missing_records(run.path, facts)[:1]
    except (WindlassError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        facts = RunFacts()
        notes.append(f"the journal cannot be read: {type(error).__name__}: {error}")
    num_damaged = reader.num_damaged + facts.num_damaged
    if num_damaged and not notes:
        notes.append(f"{count(num_damaged, 'damaged record')} skipped")
    if not facts.run and not notes:
        notes.append("the journal has no record of the launch")
    plan: Mapping[str, object] = {}
    try:
        plan = run.plan()
    except (WindlassError, OSError) as error:
        notes.append(str(error).replace(f"{run.path}/", ""))  # a line is too short for the path
    return _row(run, facts, plan, "; ".join(notes))


def _overrides(plan: Mapping[str, object]) -> tuple[str, ...]:
    given = plan.get("overrides")
    return tuple(str(override) for override in given) if isinstance(given, list) else ()


def _site(plan: Mapping[str, object]) -> str:
    site = plan.get("site")
    if not isinstance(site, Mapping):
        return ""
    return "/".join(str(part) for part in (site.get("name"), site.get("partition")) if part)


def _shape(plan: Mapping[str, object]) -> str:
    tasks = plan.get("tasks")
    planned = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
    shapes = [task.get("shape") for task in planned]
    sizes = [(_number(each.get("nodes")), _number(each.get("gpus"))) for each in shapes if isinstance(each, Mapping)]
    if not sizes:
        return ""
    nodes, gpus = max(sizes, key=lambda size: (size[0] * size[1], size[0]))
    return f"{nodes}x{gpus} gpu" if gpus else f"{nodes} cpu"


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _progress(facts: RunFacts) -> str:
    done = sum(task.state is State.SUCCEEDED for task in facts.tasks.values())
    parts = [f"{done}/{len(facts.tasks)} tasks"] if len(facts.tasks) > 1 else []
    unfinished = [task for task in facts.tasks.values() if task.state is not State.SUCCEEDED]
    step = max((max(task.phase[2], task.newest_checkpoint.step) for task in unfinished), default=-1)
    return ", ".join([*parts, *([f"step {step}"] if step >= 0 else [])])


def _sweep(plan: Mapping[str, object]) -> str:
    notes = plan.get("notes")
    found = (_TRIAL.fullmatch(str(note)) for note in notes) if isinstance(notes, list) else ()
    return next((match.group(1) for match in found if match is not None), "")


def _row(run: RunFolder, facts: RunFacts, plan: Mapping[str, object], note: str) -> RunRow:
    reasons = [task.reason for task in facts.tasks.values() if task.reason]
    is_known = bool(facts.tasks)
    return RunRow(
        id=run.id,
        name=facts.name or experiment_of(run.id) or run.id,
        why=facts.why,
        state=str(facts.state) if is_known else UNKNOWN,
        cause=facts.cause,
        reason=reasons[0] if reasons else "",
        plan_hash=facts.plan_hash,
        created_at=facts.created_at,
        updated_at=facts.updated_at,
        ended_at=facts.ended_at,
        num_attempts=facts.num_attempts,
        tasks={name: str(task.state) for name, task in sorted(facts.tasks.items())},
        overrides=shlex.join(_overrides(plan)),
        note=note,
        may_be_queued=facts.state.is_terminal and any(task.jobs_left for task in facts.tasks.values()),
        site=_site(plan),
        shape=_shape(plan),
        progress=_progress(facts),
        sweep=_sweep(plan),
    )
