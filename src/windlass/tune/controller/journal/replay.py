"""Replay of a sweep: the journal is passed to a new core, which must make the same decisions again.

Decisions that were not fully written (a torn tail) are made again and written.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.record.frames import Record
from windlass.tune.controller.core import Core
from windlass.tune.controller.inputs import MAKERS
from windlass.tune.controller.journal import records
from windlass.tune.controller.state import Drop

__all__ = ["Replay"]

_NUM_DROPS = 64
Line = tuple[str, dict[str, Any]]


class Replay:
    """Replay of journal records by a core.

    Attributes:
        num_records: number of records replayed.
        drops: the latest deletions, which are repeated because the head may have died before them.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._expected: deque[Line] = deque()
        self.num_records = 0
        self.drops: deque[Drop] = deque(maxlen=_NUM_DROPS)

    def take(self, found: Iterable[Record]) -> None:
        """Replay the next records.

        Raises:
            PreconditionError: the core now decides differently (`sweep-journal-differs`).
        """
        core, expected = self._core, self._expected
        lines, commands = core.state.lines, core.state.commands
        for record in found:
            self.num_records += 1
            kind, data = record.kind, record.data
            if expected:
                self._compare(expected.popleft(), record)
                continue
            core.replayed = data
            if kind == records.TRIAL_REPORTED:  # at least three in four records
                core.apply_report(data["trial"], data["attempt"], data["metrics"], data.get("saved", ""), record.at)
            elif kind in MAKERS:
                core.apply(MAKERS[kind](data), record.at)
            elif kind in records.DERIVED:
                raise self._differs(record, None)
            else:
                continue
            if len(lines) == 1:
                line = lines.pop()
            elif lines:
                line = lines[0]
                expected.extend(lines[1:])
                lines.clear()
            else:
                raise self._differs(record, None)
            if line[0] != kind or line[1] != data:
                self._compare(line, record)
            if commands:
                self.drops.extend(command for command in commands if type(command) is Drop)
                commands.clear()

    def finish(self) -> None:
        """Finish the replay; what the journal lacks of the last decision is written next."""
        self._core.replayed = None
        self._core.state.lines.extend(self._expected)
        self._expected.clear()

    def _compare(self, line: Line, record: Record) -> None:
        """Raise if a line differs from the record when both are JSON (tuples equal lists, NaN equals NaN)."""
        if line[0] != record.kind or _text(line[1]) != _text(record.data):
            raise self._differs(record, line)

    def _differs(self, record: Record, line: Line | None) -> PreconditionError:
        now = "nothing" if line is None else f"{line[0]} {_text(line[1])}"
        return PreconditionError(
            f"the replay differs from the journal at record {record.seq}: {record.kind} {_text(record.data)} became {now}",
            hint="restore it with the same scheduler and version of windlass; custom schedulers must be deterministic",
            code="sweep-journal-differs",
        )


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True)
