"""Account at Beaker, accessed through the Beaker backend's service."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.compat.gantry.account import GantryCluster

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["OnlineAccount"]


class OnlineAccount:
    """Account of a user in one workspace, read from Beaker; implements `account.GantryAccount`.

    Args:
        service: shared with the submission.
        workspace: full name; empty is the default of Beaker's settings.
    """

    def __init__(self, service: BeakerService, workspace: str = "") -> None:
        self.service = service
        self._asked = workspace

    @cached_property
    def _workspace(self) -> tuple[str, bool]:
        with self.service.asking(f"reading workspace `{self._asked or 'of your settings'}`") as client:
            found = client.workspace.get(self._asked or None)
            return found.name, bool(found.budget_id)

    @property
    def workspace(self) -> str:
        """Return the full name of the workspace."""
        return self._workspace[0]

    @cached_property
    def user(self) -> str:
        """Return the name of the user."""
        with self.service.asking("reading the user's name") as client:
            return str(client.user.get().name)

    @cached_property
    def organization(self) -> str:
        """Return the organization that names without one belong to."""
        return self.service.account.default_org or self.workspace.partition("/")[0]

    def has_budget(self) -> bool:
        """Return True if the workspace has its own budget."""
        return self._workspace[1]

    @cached_property
    def _clusters(self) -> tuple[GantryCluster, ...]:
        with self.service.asking("listing clusters") as client:
            return tuple(
                GantryCluster(
                    organization=each.organization_name,
                    name=each.name,
                    aliases=tuple(each.aliases),
                    tags=tuple(each.tags),
                    takes_batch_jobs=not (
                        each.HasField("max_task_timeout") and each.max_task_timeout.ToMilliseconds() == 0
                    ),
                )
                for each in client.cluster.list()
            )

    def clusters(self) -> Sequence[GantryCluster]:
        """Return all clusters, in Beaker's order."""
        return self._clusters

    def gpu_type(self, cluster: GantryCluster) -> str:
        """Return the GPU type of a cluster's first node, such as `NVIDIA H100`."""
        with self.service.asking(f"listing the nodes of {cluster.full_name}") as client:
            from beaker.types import BeakerGpuType  # lazy: the client costs half a second

            for node in client.node.list(cluster=client.cluster.get(cluster.full_name), limit=1):
                kinds = {int(kind): kind.name for kind in BeakerGpuType}
                return kinds.get(node.node_resources.gpu_type, "").replace("_", " ")
        return ""

    def secrets(self) -> Collection[str]:
        """Return the names of the workspace's secrets."""
        return self.service.secrets(self.workspace)

    def image_id(self, name: str) -> str | None:
        """Return the id of an image."""
        with self.service.asking(f"looking for image `{name}`") as client:
            from beaker.exceptions import BeakerImageNotFound  # lazy: the client costs half a second

            try:
                return str(client.image.get(name).id)
            except BeakerImageNotFound:
                return None

    def dataset_id(self, name: str) -> str | None:
        """Return the id of a dataset."""
        with self.service.asking(f"looking for dataset `{name}`") as client:
            from beaker.exceptions import BeakerDatasetNotFound  # lazy: the client costs half a second

            try:
                return str(client.dataset.get(name).id)
            except BeakerDatasetNotFound:
                return None

    def group(self, name: str) -> str | None:
        """Return a group's full name: `owner/name`, or the workspace's first group called `name`."""
        plain = name.partition("/")[2] or name
        with self.service.asking(f"looking for group `{name}`") as client:
            workspace = client.workspace.get(self.workspace)
            for group in client.group.list(workspace=workspace, name_or_description=plain):
                if name in (group.full_name, group.name):
                    return str(group.full_name)
        return None

    def has_experiment(self, name: str) -> bool:
        """Return True if you have an experiment with this name."""
        return self.service.find("", name) is not None

    def write_secret(self, name: str, value: str) -> None:
        """Write a secret."""
        self.service.write_secret(name, value, workspace=self.workspace)

    def create_group(self, name: str) -> str:
        """Create a group and return its full name."""
        with self.service.asking(f"creating group `{name}`") as client:
            return str(client.group.create(name, workspace=client.workspace.get(self.workspace)).full_name)

    def create_dataset(self, name: str, source: Path) -> str:
        """Upload a file or folder unless the dataset exists; return the dataset's id."""
        if source.is_dir():
            return self.service.create_dataset(name, source, workspace=self.workspace)
        with tempfile.TemporaryDirectory(prefix="windlass-upload-") as temporary:
            shutil.copy2(source, temporary)
            return self.service.create_dataset(name, Path(temporary), workspace=self.workspace)
