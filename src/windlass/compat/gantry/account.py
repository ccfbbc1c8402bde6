"""Calls that a launch makes to Beaker before it is sent, as a protocol without a service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from windlass.core.dataclass import dataclass

__all__ = ["GantryAccount", "GantryCluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GantryCluster:
    """A cluster that takes batch jobs: `organization/name`, other names of it, tags."""

    organization: str
    name: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    takes_batch_jobs: bool = True

    @property
    def full_name(self) -> str:
        """The name with its organization, as a constraint is written."""
        return f"{self.organization}/{self.name}"


class GantryAccount(Protocol):
    """A user's Beaker in one workspace. Every call may block for a round trip and raises WindlassError."""

    @property
    def workspace(self) -> str:
        """Full name of the workspace."""
        ...

    @property
    def user(self) -> str:
        """Name of the user."""
        ...

    @property
    def organization(self) -> str:
        """The organization that names without one belong to."""
        ...

    def has_budget(self) -> bool:
        """Return True when the workspace has a budget of its own."""
        ...

    def clusters(self) -> Sequence[GantryCluster]:
        """All clusters, in Beaker's order."""
        ...

    def gpu_type(self, cluster: GantryCluster) -> str:
        """GPU type of a cluster, such as `NVIDIA H100`; empty where it is not known."""
        ...

    def secrets(self) -> Collection[str]:
        """Names of the workspace's secrets."""
        ...

    def image_id(self, name: str) -> str | None:
        """Id of an image."""
        ...

    def dataset_id(self, name: str) -> str | None:
        """Id of a dataset."""
        ...

    def group(self, name: str) -> str | None:
        """Full name of a group."""
        ...

    def has_experiment(self, name: str) -> bool:
        """Return True when an experiment of this name exists."""
        ...

    def write_secret(self, name: str, value: str) -> None:
        """Write a secret; the same twice is the same."""
        ...

    def create_group(self, name: str) -> str:
        """Make a group; returns its full name."""
        ...

    def create_dataset(self, name: str, source: Path) -> str:
        """Upload a file or folder as the dataset `name`, unless it is there; returns its id."""
        ...
