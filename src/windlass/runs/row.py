"""One line of `windlass ps`: what the index keeps of a run, derived from its journal alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.journal import JournalReader
from windlass.record.state import RunFacts, State
from windlass.runs.store import RunFolder, experiment_of

__all__ = ["COLUMNS", "UNKNOWN", "Row", "derive"]

UNKNOWN = "unknown"
"""The state of a run whose journal says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run in one line.

    Attributes:
        state: a `State`, or `unknown` where the journal cannot be read.
        cause: why it ended, a `Cause`; empty while it goes on.
        reason: why it waits, in words.
        tasks: the state of each task.
        num_attempts: attempts of all tasks together.
        overrides: what was changed on the command line, as it was typed.
        note: what is wrong with its folder; empty when nothing is.
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

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens unless a person asks for it."""
        return self.state != UNKNOWN and State(self.state).is_terminal

    def to_columns(self) -> tuple[str | float | int, ...]:
        """The values of the index's columns, in the order of the fields."""
        return tuple(json.dumps(self.tasks) if name == "tasks" else getattr(self, name) for name in COLUMNS)

    @classmethod
    def from_columns(cls, columns: tuple[object, ...]) -> Row:
        """Read back `to_columns`; raises ValueError when that is not what they are."""
        values = dict(zip(COLUMNS, columns, strict=True))
        values["tasks"] = json.loads(str(values["tasks"]))
        return cls(**values)  # type: ignore[arg-type]  # the columns hold what to_columns put there


COLUMNS = tuple(item.name for item in fields(Row))
"""The names of a row's values, in order."""


def derive(run: RunFolder) -> Row:
    """Read a run's folder; whatever is wrong with it becomes a note, never an error."""
    facts, notes = RunFacts(), []
    reader = JournalReader(run.journal, skip=(events.METRICS,))
    try:
        for record in reader.poll():
            facts.apply(record)
    except (WindlassError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        facts = RunFacts()
        notes.append(f"the journal cannot be read: {type(error).__name__}: {error}")
    num_damaged = reader.num_damaged + facts.num_damaged
    if num_damaged:
        notes.append(f"{num_damaged} damaged records were passed over")
    if not facts.run and not notes:
        notes.append("the journal does not say what was started")
    overrides: tuple[str, ...] = ()
    try:
        overrides = _overrides(run.plan())
    except (WindlassError, OSError) as error:
        notes.append(str(error))
    return _row(run, facts, shlex.join(overrides), "; ".join(notes))


def _overrides(plan: Mapping[str, object]) -> tuple[str, ...]:
    given = plan.get("overrides")
    return tuple(str(override) for override in given) if isinstance(given, list) else ()


def _row(run: RunFolder, facts: RunFacts, overrides: str, note: str) -> Row:
    reasons = [task.reason for task in facts.tasks.values() if task.reason]
    is_known = bool(facts.tasks)
    return Row(
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
        num_attempts=sum(len(task.attempts) for task in facts.tasks.values()),
        tasks={name: str(task.state) for name, task in sorted(facts.tasks.items())},
        overrides=overrides,
        note=note,
    )
