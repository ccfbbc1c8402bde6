"""Protocol for the calls that a launch makes to Beaker before it is submitted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from windlass.core.dataclass import dataclass

__all__ = ["GantryAccount", "GantryCluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryCluster:
    """Cluster that accepts batch jobs, with its name (`organization/name`), aliases and tags."""

    organization: str
    name: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    takes_batch_jobs: bool = True

    @property
    def full_name(self) -> str:
        """Return the name including the organization, as written in a constraint."""
        return f"{self.organization}/{self.name}"


class GantryAccount(Protocol):
    """A user's account at Beaker in one workspace. Every call may block for a round trip and raise WindlassError."""

    @property
    def workspace(self) -> str:
        """Return the full name of the workspace."""
        ...

    @property
    def user(self) -> str:
        """Return the name of the user."""
        ...

    @property
    def organization(self) -> str:
        """Return the organization that names without one belong to."""
        ...

    def has_budget(self) -> bool:
        """Return True if the workspace has its own budget."""
        ...

    def clusters(self) -> Sequence[GantryCluster]:
        """Return all clusters, in Beaker's order."""
        ...

    def gpu_type(self, cluster: GantryCluster) -> str:
        """Return a cluster's GPU type, such as `NVIDIA H100`, or an empty string if it is unknown."""
        ...

    def secrets(self) -> Collection[str]:
        """Return the names of the workspace's secrets."""
        ...

    def image_id(self, name: str) -> str | None:
        """Return the id of an image."""
        ...

    def dataset_id(self, name: str) -> str | None:
        """Return the id of a dataset."""
        ...

    def group(self, name: str) -> str | None:
        """Return the full name of a group."""
        ...

    def has_experiment(self, name: str) -> bool:
        """Return True if an experiment with this name exists."""
        ...

    def write_secret(self, name: str, value: str) -> None:
        """Write a secret. Idempotent."""
        ...

    def create_group(self, name: str) -> str:
        """Create a group and return its full name."""
        ...

    def create_dataset(self, name: str, source: Path) -> str:
        """Upload a file or folder as the dataset `name` unless that exists; return the dataset's id."""
        ...
