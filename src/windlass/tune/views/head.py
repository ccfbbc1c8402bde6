"""View inside the head, which reads the controller a few times a second; other calls only read a clock.

Numbers come from the controller's counters and from running trials. From the journal it parses only records that change
a trial's status and skips plain reports, so the cost does not depend on the number of reports. All trials are read only
once, when an existing sweep is restored.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Protocol

from windlass.core.clock import Clock, SystemClock
from windlass.record.frames import HEADER, decode
from windlass.tune.controller.journal import records
from windlass.tune.folder import SweepFolder
from windlass.tune.trial import Trial, TrialStatus
from windlass.tune.views.live import LiveView
from windlass.tune.views.progress import SweepProgress, TrialRow

if TYPE_CHECKING:
    from windlass.tune.controller.core import Core

__all__ = ["HeadView", "Looked"]

_PLAIN = f'{{"kind":"{records.TRIAL_REPORTED}",'.encode()
_LOOK_EVERY_S = 0.25
_NUM_BEST = 50


class Looked(Protocol):
    """The parts of a controller that a view reads."""

    core: Core
    folder: SweepFolder
    waiting: str


class HeadView:
    """View that a head updates.

    Pass `on_turn=view.look` to the Controller, and `close` it afterwards.
    """

    def __init__(self, view: LiveView, *, clock: Clock | None = None) -> None:
        self.view = view
        self._clock = clock or SystemClock()
        self._next_at = float("-inf")
        self._position = -1

    def look(self, controller: Looked) -> None:
        """Show changes if an update is due; otherwise this takes about 0.1 us."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _LOOK_EVERY_S
        self._take_up(controller)
        self.view.tick()

    def close(self, controller: Looked | None = None) -> None:
        """Show the final state. Idempotent."""
        if controller is not None:
            self._take_up(controller)
        self.view.close()

    def _take_up(self, controller: Looked) -> None:
        progress, core = self.view.progress, controller.core
        if self._position < 0:
            self._begin(controller)
        for line in self._new_lines(controller.folder):
            body = line[HEADER:]
            is_plain = body.startswith(_PLAIN) and b'"decision":' not in body and b'"acts":' not in body
            if is_plain and not self.view.tells_reports:
                continue
            record = decode(line)
            if record is not None:
                ended = self._ended_row(progress, record.data, core)
                self.view.take(record.kind, record.data, record.at)
                if ended:
                    progress.note_score(ended, ended.best)
        progress.num_reports, progress.newest_at = core.num_reports, core.at
        for trial in core.state.table.running.values():
            if trial.id in progress.live:
                self._refresh(progress, progress.live[trial.id], trial)
        progress.head_waits = controller.waiting
        while core.state.notes:
            self.view.note(core.state.notes.pop(0))

    @staticmethod
    def _refresh(progress: SweepProgress, row: TrialRow, trial: Trial) -> None:
        row.metrics, row.iteration = trial.last or {}, trial.iteration
        progress.note_score(row, trial.best)
        if not progress.user_metrics:
            progress.note_names(row.metrics)

    def _ended_row(self, progress: SweepProgress, data: dict[str, Any], core: Core) -> TrialRow | None:
        """Return the row of an ended trial with its newest numbers, because it may now leave the table."""
        row = progress.live.get(str(data.get("trial")))
        trial = core.state.table.trials.get(row.trial) if row else None
        if row and trial:
            self._refresh(progress, row, trial)
        return row

    def _new_lines(self, folder: SweepFolder) -> list[bytes]:
        with open(folder.head_journal, "rb") as file:
            file.seek(self._position)
            content = file.read()
        end = content.rfind(b"\n") + 1
        self._position += end
        return content[:end].splitlines()

    def _begin(self, controller: Looked) -> None:
        """Load the state of a sweep from the controller's tables. Called once."""
        progress, core = self.view.progress, controller.core
        settings, table = core.settings, core.state.table
        objectives = settings.objectives
        progress.name, progress.began_at = settings.name, core.at - core.state.usage.seconds
        progress.metric = progress.metric or next(iter(objectives.metrics), "")
        progress.mode = progress.mode or ("max" if objectives.is_max[:1] == (True,) else "min")
        progress.total = progress.total or settings.max_trials
        progress.counts = dict(table.counts)
        over = (trial for trial in table.trials.values() if trial.status.is_over)
        sign = -1.0 if progress.mode == "max" else 1.0
        best = heapq.nsmallest(
            _NUM_BEST, over, key=lambda trial: (trial.best is None, sign * (trial.best or 0.0), -trial.number)
        )
        progress.adopt([_row_of(trial) for trial in table.live.values()], [_row_of(trial) for trial in best])
        self._position = controller.folder.head_journal.stat().st_size


def _row_of(trial: Trial) -> TrialRow:
    why = trial.why if trial.status in (TrialStatus.PENDING, TrialStatus.PAUSED) else ""
    values = trial.assigned or trial.config
    return TrialRow(trial.id, values, trial.status, trial.iteration, trial.last or {}, trial.best, trial.place, why)
