"""A run in Python: look at it, follow it, stop it, read what it left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import NotFoundError, WaitTimeoutError
from windlass.core.names import nearest
from windlass.plan import Plan
from windlass.record.state import RunFacts, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

if TYPE_CHECKING:
    from windlass.launch.verify import Finding
    from windlass.runs.compare import Difference

__all__ = ["Run"]

_POLL_S = 0.1
_KEEP_EVERY_S = 5.0


class Run:
    """One run; `Run.find` takes what commands take: an id, its beginning, four of its last letters, a name, `last`."""

    def __init__(self, folder: RunFolder, home: Home) -> None:
        self.folder = folder
        self._home = home

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.state}>"

    @classmethod
    def find(cls, ref: str, home: Home | None = None) -> Run:
        """The run that `ref` means; raises NotFoundError or UsageError when it is not exactly one."""
        home = home or Home.default()
        return cls(find(home, ref), home)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.folder.id

    @property
    def facts(self) -> RunFacts:
        """Everything its journal says now."""
        return self.folder.facts()

    @property
    def state(self) -> State:
        """Its state now."""
        return self.facts.state

    @property
    def plan(self) -> Plan:
        """What it executes."""
        return Plan.from_data(self.folder.plan())

    @property
    def outputs(self) -> Mapping[str, Path]:
        """Output folder of each task, by its name."""
        return {task: self.folder.out(task) for task in self.facts.tasks}

    def output(self, task: str) -> Path:
        """Output folder of one task; raises NotFoundError with the nearest name."""
        found = self.outputs
        if task not in found:
            close = nearest(task, found)
            hint = f"did you mean `{close}`?" if close else f"its tasks are: {', '.join(found)}"
            raise NotFoundError(f"run {self.id} has no task `{task}`", hint=hint, code="unknown-task")
        return found[task]

    def metrics(self, name: str, task: str | None = None) -> list[tuple[int, float, float]]:
        """A reported series as (step, value, time)."""
        from windlass.runs import metrics  # lazy: here and below, a launch needs none of it

        return metrics.series(self.folder, name, task)

    def reconcile(self) -> list[str]:
        """Bring its record in line with the world; returns what was done."""
        from windlass.launch.keeper import keep  # lazy: see above

        return keep(self.folder, self._home)

    def follow(self, on_line: Callable[[str, int, str], None] | None = None, timeout_s: float | None = None) -> State:
        """Block until the run ends, handing over log lines as (task, rank, line); returns the final state.

        Raises:
            WaitTimeoutError: it had not ended after `timeout_s`; it goes on.
        """
        from windlass.runs.logs import Follower  # lazy: see above

        follower = Follower(self.folder)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, keep_at = 0.01, time.monotonic() + _KEEP_EVERY_S
        while True:
            is_over = self.state.is_terminal
            num_lines = 0
            for line in follower.rest() if is_over else follower.poll():
                num_lines += 1
                if on_line is not None:
                    on_line(line.task, line.rank, line.text)
            if is_over:
                return self.state
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(
                    f"run {self.id} had not ended after {timeout_s:g} s", hint="it goes on", code="timed-out"
                )
            if now >= keep_at:
                self.reconcile()
                keep_at = now + _KEEP_EVERY_S
            pause = 0.01 if num_lines else min(pause * 1.5, _POLL_S)
            time.sleep(pause)

    def wait(self, timeout_s: float | None = None) -> State:
        """Block until the run ends; returns the final state."""
        return self.follow(None, timeout_s)

    def stop(self, *, checkpoint: bool = False, now: bool = False) -> None:
        """Ask it to stop; `checkpoint` lets the code save first, `now` ends it by force."""
        from windlass.launch import control  # lazy: see above

        if now:
            control.kill(self.folder, self._home)
        else:
            control.stop(self.folder, self._home, is_checkpoint_wanted=checkpoint)

    def retry(self) -> list[str]:
        """Start what failed again with fresh budgets."""
        from windlass.launch import control  # lazy: see above

        return control.retry(self.folder, self._home)

    def resume(self) -> list[str]:
        """Go on after a stop."""
        from windlass.launch import control  # lazy: see above

        return control.resume(self.folder, self._home)

    def rerun(self, overrides: Sequence[str] = ()) -> Run:
        """Start a new run with the same pins; overrides may change parameters, resources and limits."""
        from windlass.launch.rerun import prepare_rerun  # lazy: the planner is not needed to look at a run

        return prepare_rerun(self.folder, self._home, tuple(overrides)).launch()

    def verify(self) -> list[Finding]:
        """Compare every part of it with what was recorded; reads every byte."""
        from windlass.launch.verify import verify  # lazy: as above

        return list(verify(self.folder))

    def diff(self, other: Run) -> list[Difference]:
        """What differs between this run and another, by cause."""
        from windlass.runs.compare import diff  # lazy: as above

        return diff(self.folder, other.folder)
