"""Folder of a cluster on this machine: its file, its id, its journal and its token."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from windlass.cluster.config import ClusterConfig
from windlass.cluster.state import ClusterState, fold
from windlass.config.emit import to_yaml
from windlass.config.loading import load_config
from windlass.core.clock import Clock, SystemClock
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import write_atomic
from windlass.core.names import nearest
from windlass.record.journal import JournalWriter, read_journal
from windlass.runs.home import Home

__all__ = ["ClusterHome", "find_cluster", "list_clusters"]

_WRITER = "client"


@dataclass(frozen=True, slots=True)
class ClusterHome:
    """A cluster's folder; created by `create`."""

    path: Path
    clock: Clock = field(default_factory=SystemClock)

    @property
    def name(self) -> str:
        """Return the cluster's name."""
        return self.path.name

    @property
    def id(self) -> str:
        """Return what marks its machines; a name that is used again gets another id."""
        return (self.path / "id").read_text().strip()

    @property
    def token(self) -> str:
        """Return what Ray's processes of this cluster show each other."""
        return (self.path / "token").read_text().strip()

    @property
    def logs(self) -> Path:
        """Return the folder of the logs of nodes that failed."""
        return self.path / "logs"

    def config(self) -> ClusterConfig:
        """Return the cluster's file as it was when it last was brought up."""
        path = self.path / "cluster.yaml"
        return load_config(ClusterConfig, path.read_text(), source=str(path)).value

    def state(self) -> ClusterState:
        """Return what the journal says."""
        return fold(read_journal(self.path / "journal"))

    @classmethod
    def create(cls, home: Home, config: ClusterConfig) -> ClusterHome:
        """Create a cluster's folder, or return the one of a cluster that is up; one of which nothing is left begins anew.

        One that is closed but not cleared is returned too: `up.begin` clears it first.
        """
        found = cls(home.path / "clusters" / config.name)
        if (found.path / "id").exists() and not found.state().is_over:
            return found
        found.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (found.path / "journal").exists():
            (found.path / "journal").rename(found.path / f"journal.{found.id}")
        shutil.rmtree(found.logs, ignore_errors=True)
        found.write_config(config)
        write_atomic(found.path / "token", secrets.token_hex(32).encode(), mode=0o600)
        write_atomic(found.path / "id", f"{config.name}-{secrets.token_hex(4)}".encode())
        return found

    def write_config(self, config: ClusterConfig) -> None:
        """Replace the cluster's file."""
        write_atomic(self.path / "cluster.yaml", to_yaml(config).encode())

    @contextmanager
    def acting(self) -> Iterator[JournalWriter]:
        """Hold the journal, and with it the right to act on the cluster.

        Raises:
            PreconditionError: another command acts on it (`in-use`).
        """
        try:
            writer = JournalWriter(self.path / "journal", _WRITER, self.clock)
        except PreconditionError as error:
            if error.code != "in-use":
                raise
            message = f"another command is changing the cluster {self.name}"
            raise PreconditionError(message, hint="wait for it, or end it", code="in-use") from error
        try:
            yield writer
        finally:
            writer.close()


def list_clusters(home: Home) -> list[ClusterHome]:
    """Return all clusters, by name; creates nothing."""
    folder = home.path / "clusters"
    if not folder.is_dir():
        return []
    return [ClusterHome(path) for path in sorted(folder.iterdir()) if (path / "id").is_file()]


def find_cluster(home: Home, name: str) -> ClusterHome:
    """Return a cluster by name.

    Raises:
        NotFoundError: there is none.
    """
    clusters = list_clusters(home)
    for found in clusters:
        if found.name == name:
            return found
    names = [each.name for each in clusters]
    close = nearest(name, names)
    hint = f"did you mean `{close}`?" if close else "`windlass cluster up FILE` makes one"
    raise NotFoundError(f"no cluster `{name}`", hint=hint, code="not-found")
