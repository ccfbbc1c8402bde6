"""Following of a run to its end: log lines on standard output, progress and verdict on standard error."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.render.progress import Progress
from windlass.cli.render.verdict import show_verdict
from windlass.cli.screen import emit, paint, printable, tell
from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.frames import Record
from windlass.record.journal import JournalReader
from windlass.record.state import RunFacts, State
from windlass.runs.home import Home
from windlass.runs.logs import LogFollower, LogLine
from windlass.runs.store import RunFolder

if TYPE_CHECKING:
    from windlass.launcher.remote.refresh import MirrorRefresh

__all__ = ["Following", "follow_to_verdict"]

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
_EARLY_PAUSE_S = 0.05
_EARLY_S = 3.0
"""Poll faster for this long, so that the first line and the end of a short run show at once."""
_KEEP_EVERY_S = 5.0


def follow_to_verdict(following: Following) -> int:
    """Block until the run ends, print its verdict and return the exit code. Ctrl-C detaches; the run continues."""
    run = following.run
    try:
        facts = following.to_the_end()
    except KeyboardInterrupt:
        tell()
        tell(f"detached: {run.id} continues")
        tell(f"  windlass logs {run.id} --follow")
        tell(f"  windlass stop {run.id}")
        return EXIT_INTERRUPTED
    show_verdict(run, facts, following.reported)
    return 0 if facts.state is State.SUCCEEDED else 1


class Following:
    """Printer for the log lines and the progress of a running run.

    Args:
        logs_to_stderr: print log lines to standard error; standard output is for JSON.
        skips_past: do not print earlier progress and log lines; create the object before the run is continued.

    Attributes:
        reported: attempts whose end and output have been printed.
    """

    def __init__(self, run: RunFolder, home: Home, *, logs_to_stderr: bool = False, skips_past: bool = False) -> None:
        self.run = run
        self._home = home
        self._journal = JournalReader(run.journal, skip=(events.METRICS, events.PROGRESS))
        self._facts = RunFacts()
        self._logs = LogFollower(run)
        self._progress = Progress()
        self._trouble = ""
        self.reported: set[tuple[str, int]] = set()
        self._listening: MirrorRefresh | None = None
        self._write = functools.partial(tell, folds=False) if logs_to_stderr else emit
        if skips_past:
            self._skip_past()

    def _listen(self, *, is_last: bool = False) -> None:
        """Update the local copy of a run at a remote site.

        Prints a note, but only once, if the site cannot be reached.
        """
        if not self.run.is_mirrored:
            return
        from windlass.launcher.remote.refresh import MirrorRefresh  # lazy: most runs are local

        self._listening = self._listening or MirrorRefresh(self.run, self._home)
        before = self._listening.trouble
        self._listening.look(is_last=is_last)
        if self._listening.trouble and not before:
            tell(f"note: {printable(self._listening.trouble)}; {self.run.id} continues; still following")

    def _skip_past(self) -> None:
        self._listen(is_last=True)
        for record in self._journal.poll():
            self._facts.apply(record)
            self._progress.describe(record)
        for _ in self._logs.poll():
            pass

    def to_the_end(self) -> RunFacts:
        """Block until the run has ended and all its output has been printed."""
        began = time.monotonic()
        pause, keep_at = _FIRST_PAUSE_S, began + _KEEP_EVERY_S
        while True:
            self._listen()
            is_moving = self._look()
            if self._facts.state.is_terminal:
                self._listen(is_last=True)
                self._print(self._logs.rest())
                if any(task.jobs_left for task in self._facts.tasks.values()):
                    self._keep()  # links that its last job could not cancel
                return self._facts
            if time.monotonic() >= keep_at:
                self._keep()
                keep_at = time.monotonic() + _KEEP_EVERY_S
            longest = _EARLY_PAUSE_S if time.monotonic() < began + _EARLY_S else _LONGEST_PAUSE_S
            pause = _FIRST_PAUSE_S if is_moving else min(pause * 1.5, longest)
            time.sleep(pause)

    def _keep(self) -> None:
        """Reconcile the run; if that fails, print the reason once and keep following."""
        from windlass.launcher.reconcile.reconciler import (  # lazy: a short run ends before this
            NOTHING_DONE,
            reconcile_run,
        )

        try:
            for line in reconcile_run(self.run, self._home):
                if line.startswith(NOTHING_DONE) and line != self._trouble:
                    tell(f"note: {printable(line)}")
                    self._trouble = line
        except WindlassError as error:
            if error.message != self._trouble and not (self._listening and self._listening.trouble):
                tell(f"note: {printable(error.message)}")
            self._trouble = error.message

    def _look(self) -> bool:
        """Print new records and log lines; return whether there were any.

        The journal is read before the logs, so that an attempt's lines are printed before its end, and those of the next
        attempt after its start.
        """
        records = self._journal.poll()
        for record in records:
            self._facts.apply(record)
        lines = list(self._logs.poll())
        for record in records:
            if record.kind == events.ATTEMPT_ENDED:
                task, attempt = str(record.data["task"]), int(record.data["attempt"])
                lines += self._logs.finish(task, attempt)
                self._print(line for line in lines if line.task == task and line.attempt <= attempt)
                lines = [line for line in lines if line.task != task or line.attempt > attempt]
            elif record.kind == events.TASK_ENDED:
                self._print(lines)
                lines = []
            self._tell([record])
        self._print(lines)
        return bool(records or lines)

    def _tell(self, records: Iterable[Record]) -> None:
        for record in records:
            text = self._progress.describe(record)
            if record.kind == events.ATTEMPT_ENDED:
                self.reported.add((str(record.data["task"]), int(record.data["attempt"])))
            if text:
                tell(paint(f"-- {printable(text)}", "dim", stream=sys.stderr))

    def _print(self, lines: Iterable[LogLine]) -> int:
        num_lines = 0
        is_labelled = sum(task.num_replicas for task in self._facts.tasks.values()) > 1
        for line in lines:
            self._write((paint(f"{line.task}.{line.rank} | ", "dim") if is_labelled else "") + line.text)
            num_lines += 1
        if num_lines:
            sys.stdout.flush()
        return num_lines
