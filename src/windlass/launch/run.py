"""A run in Python: look at it, follow it, stop it, read what it left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.errors import NotFoundError, UnreachableError, WaitTimeoutError
from windlass.core.names import nearest
from windlass.plan import Plan
from windlass.record.state import RunFacts, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

if TYPE_CHECKING:
    from windlass.launch.archive.exporting import Exported
    from windlass.launch.verify.finding import Finding
    from windlass.launch.verify.reexecution import Reexecution, Verification
    from windlass.runs.compare.compare import Difference
    from windlass.runs.outputs import Manifest
    from windlass.runs.provenance.graph import ProvenanceGraph

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

    def fetch_output(self, task: str) -> Path:
        """Output folder of one task, brought here where the run lives at a site reached over ssh; blocking.

        Raises:
            NotFoundError: it has no such task, or the task has no output.
            UnreachableError: the site does not answer; the next call goes on with what came.
        """
        from windlass.launch.remote.mirror import mirror_of_run  # lazy: see below

        folder, mirror = self.output(task), mirror_of_run(self.folder, self._home)
        return folder if mirror is None else mirror.fetch_outputs(task)

    def list_output(self, task: str) -> Manifest:
        """The files of a task's output with sizes and digests, as recorded at its success, else as they are now.

        Of a run at a site reached over ssh, what was recorded travels alone.

        Raises:
            NotFoundError: it has no such task, or the task has no output.
        """
        from windlass.launch import output_files  # lazy: see below

        return output_files.listed(self.folder, self._home, task)

    def pull_output(self, task: str, to: Path, *, link: bool = False) -> Path:
        """Bring a task's output to the folder `to/<task>`, every byte checked; goes on with what is there. Blocking.

        Args:
            link: share the bytes with the run by hard links instead of copying them; then never edit them.

        Raises:
            NotFoundError: it has no such task, or the task has no output.
            PreconditionError: a file is not as it was recorded, or another is in the way.
        """
        from windlass.launch import output_files  # lazy: see below

        return output_files.pull(self.folder, self._home, task, to, is_linked=link)

    def push_output(self, task: str, to: str) -> str:
        """Copy a task's output to `to/<task>`, a folder or an fsspec URL; goes on with what is there. Blocking.

        Its manifest goes last, as `<task>.manifest.json`, so its presence says that all is there. Returns the place.

        Raises:
            NotFoundError: it has no such task, or the task has no output.
            PreconditionError: a file is not as it was recorded, or what reads such URLs is not installed.
        """
        from windlass.launch import output_files  # lazy: see below

        return output_files.push(self.folder, self._home, task, to)

    def export(
        self,
        target: Path,
        *,
        checkpoints: bool = False,
        data: bool = False,
        with_secrets: bool = False,
        log: Callable[[str], None] = lambda line: None,
    ) -> Exported:
        """Write the run, which must have ended, into one archive; whole or not at all. Blocking.

        Args:
            target: its name ends in `.tar.gz`, `.tar.zst` or `.tar`.
            checkpoints, data: take them in too.
            with_secrets: write it although values of secrets of this home are in its files.
            log: gets a line about each step.
        """
        from windlass.launch.archive.exporting import export_run  # lazy: see below

        return export_run(
            self.folder, self._home, target, checkpoints=checkpoints, data=data, with_secrets=with_secrets, log=log
        )

    @classmethod
    def import_archive(cls, path: Path, home: Home | None = None) -> Run:
        """The run of an archive, made a run here; whole or not at all. Blocking.

        Raises:
            PreconditionError: the archive is damaged or was changed, or there is a run of that id.
        """
        from windlass.launch.archive.importing import import_run  # lazy: see below

        home = home or Home.default()
        return cls(import_run(path, home), home)

    def metrics(self, name: str, task: str | None = None) -> list[tuple[int, float, float]]:
        """A reported series as (step, value, time)."""
        from windlass.runs import metrics  # lazy: here and below, a launch needs none of it

        return metrics.series(self.folder, name, task)

    def reconcile(self) -> list[str]:
        """Bring its record in line with the world, as its policy says; returns what was done.

        This submits, cancels and ends what the run needs; nothing else here that only reads does so.
        """
        from windlass.launch.reconcile.reconciler import reconcile_run  # lazy: see above

        return reconcile_run(self.folder, self._home)

    def follow(self, on_line: Callable[[str, int, str], None] | None = None, timeout_s: float | None = None) -> State:
        """Block until the run ends, handing over log lines as (task, rank, line); returns the final state.

        Raises:
            WaitTimeoutError: it had not ended after `timeout_s`; it goes on.
        """
        from windlass.launch.remote.refresh import MirrorRefresh  # lazy: see above
        from windlass.runs.logs import LogFollower  # lazy: see above

        follower, listening = LogFollower(self.folder), MirrorRefresh(self.folder, self._home)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause, keep_at = 0.01, time.monotonic() + _KEEP_EVERY_S
        while True:
            listening.look()
            is_over = self.state.is_terminal
            if is_over:
                listening.look(is_last=True)
            num_lines = 0
            for line in follower.rest() if is_over else follower.poll():
                num_lines += 1
                if on_line is not None:
                    on_line(line.task, line.rank, line.text)
            if is_over:
                if any(task.jobs_left for task in self.facts.tasks.values()):
                    with suppress(UnreachableError):  # the next who may act does it
                        self.reconcile()
                return self.state
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise WaitTimeoutError(
                    f"run {self.id} had not ended after {timeout_s:g} s", hint="it goes on", code="timed-out"
                )
            if now >= keep_at:
                with suppress(UnreachableError):  # the run goes on, and the connection comes back
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

    def rerun(self, overrides: Sequence[str] = (), *, on: str = "") -> Run:
        """Start a new run with the same pins; overrides may change parameters, resources and limits.

        Args:
            on: another place; of another kind, it may also need an override of the environment (`env.image=...`).

        Raises:
            WindlassError: something cannot be carried over; nothing was started.
        """
        from windlass.launch.rerun import Rerun, prepare_rerun  # lazy: the planner is not needed to look at a run

        return prepare_rerun(self.folder, self._home, how=Rerun(on=on, overrides=tuple(overrides))).launch()

    def provenance(self) -> ProvenanceGraph:
        """What it was made from and what it made, as nodes with their digests, and edges."""
        from windlass.runs.provenance.graph import provenance_graph  # lazy: as above

        return provenance_graph(self.folder)

    def check(self) -> list[Finding]:
        """Compare every part of it with what was recorded; reads every byte, executes nothing."""
        from windlass.launch.verify.verify import verify  # lazy: as above

        return list(verify(self.folder))

    def verify(self, reexecution: Reexecution | None = None) -> Verification:
        """Check every link, execute the same plan anew and compare the outputs; blocks until the new run ends.

        Raises:
            PreconditionError: it did not succeed, or left nothing to compare.
            WindlassError: the new run was refused.
        """
        from windlass.launch.verify.reexecution import prove  # lazy: as above

        return prove(self.folder, self._home, reexecution)

    def diff(self, other: Run) -> list[Difference]:
        """What differs between this run and another, by cause; code and data with their files."""
        from windlass.launch.verify.difference import explained  # lazy: as above

        return explained(self.folder, other.folder, self._home)
