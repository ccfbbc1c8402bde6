"""Python interface to a run: inspect, follow, stop and continue it, and read its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from windlass.plan.plan import Plan
from windlass.record.state import RunFacts, State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, find

if TYPE_CHECKING:
    from windlass.launcher.archive.exporting import Exported
    from windlass.launcher.verify.finding import Finding
    from windlass.launcher.verify.reexecution import Reexecution, Verification
    from windlass.record.frames import Record
    from windlass.runs.compare.run_differences import Difference
    from windlass.runs.logs import LogLine
    from windlass.runs.metrics import MetricPoint
    from windlass.runs.outputs import Manifest
    from windlass.runs.provenance.graph import ProvenanceGraph

__all__ = ["Run"]

T = TypeVar("T")


class Run:
    """A run of an experiment, found with `Run.find` or returned by `launch`."""

    def __init__(self, folder: RunFolder, home: Home) -> None:
        self.folder = folder
        self._home = home

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.state}>"

    @classmethod
    def find(cls, ref: str, home: Home | None = None) -> Run:
        """Return the only run that `ref` matches. Raises NotFoundError or UsageError otherwise.

        Args:
            ref: an id, its beginning or its last four or more letters, a name, or `last`.
        """
        home = home or Home.default()
        return cls(find(home, ref), home)

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.folder.id

    @property
    def facts(self) -> RunFacts:
        """Return the current facts recorded in the run's journal."""
        return self.folder.facts()

    @property
    def state(self) -> State:
        """Return the run's current state."""
        return self.facts.state

    @property
    def plan(self) -> Plan:
        """Return the run's plan."""
        return Plan.from_data(self.folder.plan())

    @property
    def outputs(self) -> Mapping[str, Path]:
        """Return the paths of the output folders by task."""
        return {task: self.folder.out(task) for task in self.facts.tasks}

    def output(self, task: str) -> Path:
        """Return the path of a task's output folder. Raises NotFoundError, naming the closest match."""
        from windlass.launcher import output_files  # lazy: see below

        return output_files.output_folder(self.folder, task)

    def fetch_output(self, task: str) -> Path:
        """Return the path of a task's output folder, fetched first if it is at a site. Blocking.

        Raises:
            NotFoundError: there is no such task, or it has no output.
            UnreachableError: the site cannot be reached; the next call resumes the transfer.
        """
        from windlass.launcher import output_files  # lazy: see below

        return output_files.fetch(self.folder, self._home, task)

    def list_output(self, task: str) -> Manifest:
        """Return a task's output files, with sizes and digests as recorded or as they are now.

        For a run at a site only the recorded list is fetched, not the files.

        Raises:
            NotFoundError: there is no such task, or it has no output.
        """
        from windlass.launcher import output_files  # lazy: see below

        return output_files.listed(self.folder, self._home, task)

    def pull_output(self, task: str, to: Path, *, link: bool = False) -> Path:
        """Copy a task's output to the folder `to/<task>` and check it; resumes a partial copy. Blocking.

        Args:
            link: hard-link the files instead of copying them; do not edit them then.

        Raises:
            NotFoundError: there is no such task, or it has no output.
            PreconditionError: a file differs from its record, or a different file exists at its destination.
        """
        from windlass.launcher import output_files  # lazy: see below

        return output_files.pull(self.folder, self._home, task, to, is_linked=link)

    def push_output(self, task: str, to: str) -> str:
        """Copy a task's output to `to/<task>`, a folder or fsspec URL; resumes a partial copy. Blocking.

        Its manifest, `<task>.manifest.json`, is written last and marks a complete copy. Returns the destination.

        Raises:
            NotFoundError: there is no such task, or it has no output.
            PreconditionError: a file differs from its record, or the URL's library is not installed.
        """
        from windlass.launcher import output_files  # lazy: see below

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
        """Export the finished run to an archive, atomically. Blocking.

        Args:
            target: its name ends in `.tar.gz`, `.tar.zst` or `.tar`.
            checkpoints, data: include them.
            with_secrets: export even if files contain secrets of this home.
            log: called with a line about each step.
        """
        from windlass.launcher.archive.exporting import export_run  # lazy: see below

        return export_run(
            self.folder, self._home, target, checkpoints=checkpoints, data=data, with_secrets=with_secrets, log=log
        )

    @classmethod
    def import_archive(cls, path: Path, home: Home | None = None) -> Run:
        """Import an archived run, atomically. Blocking.

        Raises:
            PreconditionError: the archive is damaged or was modified, or a run with that id exists.
        """
        from windlass.launcher.archive.importing import import_run  # lazy: see below

        home = home or Home.default()
        return cls(import_run(path, home), home)

    def metrics(self, name: str, task: str | None = None) -> list[MetricPoint]:
        """Return the points of a reported metric, by step: `run.metrics("loss")[-1].value`.

        If a later attempt reported a step again, its value counts; values without a step come first, with step -1.
        """
        from windlass.runs import metrics  # lazy: here and below, not needed for a launch

        return metrics.series(self.folder, name, task)

    def reconcile(self) -> list[str]:
        """Compare the run's record with its jobs and act on differences; return a line about each action.

        Submits, cancels and ends jobs as needed, unlike the methods that only read.
        """
        from windlass.launcher.reconcile.reconciler import reconcile_run  # lazy: see above

        return reconcile_run(self.folder, self._home)

    def wait(self, timeout_s: float | None = None) -> State:
        """Block until the run ends, and return its final state. The run is reconciled meanwhile.

        Raises:
            WaitTimeoutError: the run did not end within `timeout_s`; it keeps running.
        """
        from windlass.launcher.follow import wait  # lazy: see above

        return wait(self.folder, self._home, timeout_s)

    def logs(
        self,
        task: str | None = None,
        *,
        rank: int | None = None,
        attempt: int | None = None,
        follow: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[LogLine]:
        """Return an iterator over the lines that the run's processes printed.

            for line in run.logs(follow=True):
                print(line.task, line.rank, line.text)

        Without `follow` it ends with what has been printed so far, one replica's log after the other. With `follow` it
        blocks for new lines, reconciles the run meanwhile, and ends when the run has ended; lines of several replicas
        are interleaved as they are found. Stopping early costs nothing, and the run continues. Logs are read in pieces
        of 1 MiB, so memory grows with the longest line, not with the log. A progress bar yields its newest state.

        Args:
            task, rank, attempt: only lines of this task, replica or attempt.
            timeout_s: with `follow`: how long to wait for the end of the run.

        Raises:
            NotFoundError: the run has no such task.
            ValueError: `timeout_s` was given without `follow`.
            WaitTimeoutError: the run did not end within `timeout_s`; it keeps running.
        """
        from windlass.runs.logs import LogFollower  # lazy: see above

        if task is not None:
            self.output(task)  # raises if there is no such task
        reader = LogFollower(self.folder, task=task, rank=rank, attempt=attempt)
        return self._read(lambda is_over: reader.rest() if is_over else reader.poll(), follow, timeout_s)

    def events(self, *, follow: bool = False, timeout_s: float | None = None) -> Iterator[Record]:
        """Return an iterator over the run's events: attempts, processes, checkpoints, ends and so on.

            for event in run.events(follow=True):
                print(event.at, event.kind, event.data)

        `windlass.record.events` lists the kinds. Reported values are not among them: see `metrics`. Without `follow` it
        ends with what has happened so far, sorted by time. With `follow` it blocks for new events, reconciles the run
        meanwhile, and ends when the run has ended. Memory holds the events that one look finds: all earlier ones first,
        then only new ones.

        Args:
            timeout_s: with `follow`: how long to wait for the end of the run.

        Raises:
            ValueError: `timeout_s` was given without `follow`.
            WaitTimeoutError: the run did not end within `timeout_s`; it keeps running.
        """
        from windlass.record import events  # lazy: see above
        from windlass.record.journal import JournalReader

        reader = JournalReader(self.folder.journal, skip=(events.METRICS, events.PROGRESS))
        return self._read(
            lambda is_over: sorted(reader.poll(), key=lambda event: (event.at, event.writer, event.seq)),
            follow,
            timeout_s,
        )

    def _read(self, look: Callable[[bool], Iterable[T]], follow: bool, timeout_s: float | None) -> Iterator[T]:
        """Return an iterator over what `look` finds now or, with `follow`, until the run ends."""
        from windlass.launcher.follow import look_until_end  # lazy: see above
        from windlass.launcher.remote.refresh import MirrorRefresh

        if follow:
            return look_until_end(self.folder, self._home, look, timeout_s=timeout_s)
        if timeout_s is not None:
            raise ValueError("timeout_s is only for follow=True")
        MirrorRefresh(self.folder, self._home).look(is_last=True)
        return iter(look(True))

    def stop(self, *, checkpoint: bool = False, now: bool = False) -> None:
        """Stop the run; `checkpoint` lets the code save first, `now` kills it."""
        from windlass.launcher import control  # lazy: see above

        if now:
            control.kill(self.folder, self._home)
        else:
            control.stop(self.folder, self._home, is_checkpoint_wanted=checkpoint)

    def retry(self) -> list[str]:
        """Restart failed and stopped tasks with new retry budgets."""
        from windlass.launcher import control  # lazy: see above

        return control.retry(self.folder, self._home)

    def resume(self) -> list[str]:
        """Continue the run after a stop."""
        from windlass.launcher import control  # lazy: see above

        return control.resume(self.folder, self._home)

    def rerun(self, overrides: Sequence[str] = (), *, on: str = "") -> Run:
        """Start a new run with this run's pins; overrides may change parameters, resources and limits.

        Args:
            on: another place; a different kind of place may need an environment override (`env.image=...`).

        Raises:
            WindlassError: the plan does not fit the place; nothing was started.
        """
        from windlass.launcher.rerun import Rerun, prepare_rerun  # lazy: the planner is not needed to look at a run
        from windlass.launcher.start import start_run

        prepared = prepare_rerun(self.folder, self._home, how=Rerun(on=on, overrides=tuple(overrides)))
        return Run(start_run(prepared), self._home)

    def provenance(self) -> ProvenanceGraph:
        """Return the run's inputs and outputs as a graph of nodes with digests."""
        from windlass.runs.provenance.graph import provenance_graph  # lazy: as above

        return provenance_graph(self.folder)

    def check(self) -> list[Finding]:
        """Compare every part of the run with its record; every byte is read, and nothing is executed."""
        from windlass.launcher.verify.verify import verify  # lazy: as above

        return list(verify(self.folder))

    def verify(self, reexecution: Reexecution | None = None) -> Verification:
        """Check every part of the run, execute its plan again, and compare the outputs. Blocks until the new run ends.

        Raises:
            PreconditionError: the run did not succeed, or has no outputs to compare.
            WindlassError: the new run was refused.
        """
        from windlass.launcher.verify.reexecution import prove  # lazy: as above

        return prove(self.folder, self._home, reexecution)

    def diff(self, other: Run) -> list[Difference]:
        """Return the differences between two runs by cause, with changed files for code and data."""
        from windlass.launcher.verify.difference import explained  # lazy: as above

        return explained(self.folder, other.folder, self._home)
