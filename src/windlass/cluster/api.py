"""Clusters from Python: up, submit, exec, show, down."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from windlass.cluster.config import ClusterConfig
from windlass.cluster.home import ClusterHome, find_cluster
from windlass.cluster.loading import load_cluster
from windlass.cluster.nodes.commands import ClusterNode, find_head, new_run_name, shell_command
from windlass.cluster.places import MachinePlace, open_place
from windlass.cluster.plan import missing_files, plan_up
from windlass.cluster.state import ClusterState
from windlass.cluster.up import NOTHING_DONE, begin, bring_down, bring_up, name_cost
from windlass.cluster.view import ClusterView, view_of
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, SpecError, WindlassError
from windlass.runs.home import Home
from windlass.supervise.archive import ensure_archive
from windlass.supervise.node.commands import PYTHON, NodeCommand

__all__ = ["Cluster", "ClusterRun"]


class _Standard:
    """Writes a command's output to this process's streams."""

    def output(self, piece: bytes) -> None:
        sys.stdout.write(piece.decode(errors="replace"))
        sys.stdout.flush()

    def errors(self, piece: bytes) -> None:
        sys.stderr.write(piece.decode(errors="replace"))
        sys.stderr.flush()

    def note(self, text: str) -> None:
        sys.stderr.write(f"-- {text}\n")


class _Kept:
    """Keeps a command's output."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def output(self, piece: bytes) -> None:
        self.pieces.append(piece)

    def errors(self, piece: bytes) -> None:
        """Leave standard error out."""

    def note(self, text: str) -> None:
        """Leave notes out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """Command on a cluster's head; it does not depend on this process.

    Attributes:
        name: for `windlass cluster logs NAME --run RUN`.
    """

    name: str
    head: ClusterNode

    def wait(self) -> int:
        """Print the command's output until it ends; return its exit code. Blocking."""
        return self.head.follow(self.name, _Standard()) or 0

    def output(self) -> str:
        """Return what the command has written to standard output so far."""
        kept = _Kept()
        self.head.follow(self.name, kept, follows=False)
        return b"".join(kept.pieces).decode(errors="replace")

    def stop(self) -> None:
        """End the command; returns when it has ended. Idempotent."""
        self.head.kill(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster; as a context manager it is brought down at the end.

        with Cluster.up("cluster.yaml") as cluster:
            code = cluster.submit("train.py", "--lr", "0.1").wait()

    Attributes:
        home: the cluster's folder on this machine.
    """

    home: ClusterHome

    @classmethod
    def up(
        cls,
        file: str | Path,
        *,
        keep_on_failure: bool = False,
        report: Callable[[str], None] = lambda line: None,
    ) -> Cluster:
        """Bring a cluster up, without a question; returns when Ray runs on all nodes. Idempotent.

        If that fails or is interrupted, the cluster is brought down again, since no `with` block is there to do it. A cluster
        that had machines before the call is left as it is.

        Args:
            file: the cluster's file, ours or Ray's.
            keep_on_failure: leave what was made, to look at it or to call again.
            report: called with a line when something happens.

        Raises:
            SpecError: the file is refused, or what would fail on rented machines.
            WindlassError: it is not up as the file says.
        """
        config = load_cluster(Path(file)).config
        home = Home.default()
        archive = ensure_archive(home.cache / "archives")
        cluster = begin(home, config, archive, report=report)
        place = open_place(config, cluster=cluster.id, folder=cluster.path, archive=archive)
        before = cluster.state()
        if not before.living():
            problems = plan_up(config, place.provider).problems if place.provider.is_rented else missing_files(config)
            if problems:
                raise SpecError(problems)
        found: list[ClusterState] = []
        try:
            bring_up(cluster, config, place, archive=archive, report=report, found=found.append)
        except BaseException as error:  # an interrupt, too: nobody else would bring it down
            is_new = any(not (state.living() or state.open_intents) for state in found)
            if is_new and not keep_on_failure and not _has_done_nothing(error):
                _bring_down_after(error, cluster, config, place, report)
            elif isinstance(error, WindlassError):
                name_cost(error, cluster, place)
            raise
        return cls(home=cluster)

    @classmethod
    def find(cls, name: str) -> Cluster:
        """Return a cluster of `windlass cluster ls`.

        Raises:
            NotFoundError: there is none of this name.
        """
        return cls(home=find_cluster(Home.default(), name))

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self.home.name

    def submit(self, script: str | Path, *arguments: str) -> ClusterRun:
        """Copy a script to the head's home, and start it with the cluster's Python."""
        path = Path(script)
        if not path.is_file():
            raise NotFoundError(f"no such file: {path}", hint="name a Python script", code="file-not-found")
        head = self._head()
        there = head.store_script(path.name, path.read_bytes())
        return self._start(head, new_run_name(path.name), NodeCommand((PYTHON, there, *arguments)))

    def exec(self, line: str) -> ClusterRun:
        """Start a shell command on the head."""
        return self._start(self._head(), new_run_name((line.split() or ["exec"])[0]), shell_command(line))

    def show(self) -> ClusterView:
        """Return nodes, states and Ray's address; changes nothing."""
        return view_of(self.home, self._place(Path()))

    def down(self, *, report: Callable[[str], None] = lambda line: None) -> None:
        """End the cluster; returns when nothing of it is left. Idempotent."""
        bring_down(self.home, self.home.config(), self._place(_archive()), report=report)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _start(self, head: ClusterNode, name: str, command: NodeCommand) -> ClusterRun:
        head.start(name, command)
        return ClusterRun(name=name, head=head)

    def _head(self) -> ClusterNode:
        archive = _archive()
        return find_head(self.home, self._place(archive), archive)

    def _place(self, archive: Path) -> MachinePlace:
        return open_place(self.home.config(), cluster=self.home.id, folder=self.home.path, archive=archive)


def _has_done_nothing(error: BaseException) -> bool:
    """Return whether the call changed nothing, so that what the cluster has is not this call's."""
    return isinstance(error, WindlassError) and error.code in NOTHING_DONE


def _bring_down_after(
    error: BaseException, home: ClusterHome, config: ClusterConfig, place: MachinePlace, report: Callable[[str], None]
) -> None:
    """Bring down what a failed `up` made; a failure of that is a note of the first error."""
    report(f"{home.name} is not up, and is brought down")
    try:
        bring_down(home, config, place, report=report)
    except WindlassError as second:
        text = f"{home.name} was not brought down: {second.message}; `windlass cluster down {home.name}` does it"
        report(text)
        error.add_note(text)


def _archive() -> Path:
    return ensure_archive(Home.default().cache / "archives")
