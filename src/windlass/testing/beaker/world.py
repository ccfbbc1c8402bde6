"""State of the fake Beaker, protected by one lock, and lookup of records by name."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from windlass.testing.beaker.records import (
    Cluster,
    Dataset,
    Group,
    Node,
    StoredExperiment,
    StoredImage,
    StoredJob,
    StoredSecret,
    StoredTask,
    Workspace,
    new_id,
)

__all__ = ["BeakerState", "Refused"]

_Named = TypeVar("_Named", Cluster, Dataset, StoredExperiment, Group, Workspace)
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,127}\Z")


class Refused(Exception):
    """Error response of the service: an HTTP status, its gRPC code and a message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class BeakerState:
    """State of the service. All changes are made while holding `lock`; `changed` wakes waiting threads."""

    def __init__(self, folder: Path, *, user: str, organization: str, workspace: str) -> None:
        self.folder = folder
        self.user = user
        self.user_id = new_id()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.organizations: dict[str, str] = {organization: new_id(), "ai2": new_id()}
        self.budgets: dict[str, str] = {f"{organization}/budget": new_id(), "ai2/oe-base": new_id()}
        self.workspaces: list[Workspace] = []
        self.clusters: list[Cluster] = []
        self.datasets: list[Dataset] = []
        self.images: list[StoredImage] = []
        self.groups: list[Group] = []
        self.experiments: list[StoredExperiment] = []
        self.hosts: dict[str, str] = {}
        # Fakes on one machine have different addresses, so that fixed ports of their jobs do not clash.
        self._network = f"127.{secrets.randbelow(253) + 1}"
        self.add_workspace(workspace, budget_id=self.budgets[f"{organization}/budget"])

    # names ---------------------------------------------------------------------------------------------------------

    def check_name(self, name: str) -> str:
        """Check that Beaker allows a name; raise Refused (400) if not."""
        if not _NAME.match(name):
            raise Refused(
                400, f"invalid name {name!r}: letters, digits, '.', '-' and '_', no leading dash, 128 at most"
            )
        return name

    def workspace(self, key: str) -> Workspace:
        """Return a workspace by id or `owner/name`; raises Refused (404)."""
        return _find(self.workspaces, key, "workspace", prefix="")

    def cluster(self, key: str) -> Cluster:
        """Return a cluster by id, `organization/name` or alias; raises Refused (404)."""
        for cluster in self.clusters:
            if key in cluster.aliases or key in {f"{cluster.name.split('/')[0]}/{alias}" for alias in cluster.aliases}:
                return cluster
        return _find(self.clusters, key, "cluster", prefix="")

    def dataset(self, key: str) -> Dataset:
        """Return a dataset by id or `author/name`; raises Refused (404)."""
        return _find(self.datasets, key, "dataset", prefix=f"{self.user}/")

    def image(self, key: str) -> StoredImage:
        """Return an image by id or `author/name`; raises Refused (404)."""
        found = (image for image in self.images if key in (image.id, f"{image.author}/{image.name}"))
        return _first(found, f"image {key!r} not found")

    def group(self, key: str) -> Group:
        """Return a group by id or `author/name`; raises Refused (404)."""
        return _find(self.groups, key, "group", prefix=f"{self.user}/")

    def experiment(self, key: str) -> StoredExperiment:
        """Return an experiment by id or `author/name`; raises Refused (404)."""
        return _find(self.experiments, key, "experiment", prefix=f"{self.user}/")

    def task(self, key: str) -> StoredTask:
        """Return a task by id; raises Refused (404)."""
        found = (task for experiment in self.experiments for task in experiment.tasks if task.id == key)
        return _first(found, f"task {key!r} not found")

    def job(self, key: str) -> StoredJob:
        """Return a job by id; raises Refused (404)."""
        found = (job for experiment in self.experiments for job in experiment.jobs if job.id == key)
        return _first(found, f"job {key!r} not found")

    def node(self, key: str) -> tuple[Node, Cluster]:
        """Return a node by id; raises Refused (404)."""
        found = ((node, cluster) for cluster in self.clusters for node in cluster.nodes if node.id == key)
        return _first(found, f"node {key!r} not found")

    def organization_id(self, key: str) -> str:
        """Return the id of an organization by name or id; raises Refused (404)."""
        return _id_of(self.organizations, key, "organization")

    def budget_id(self, key: str) -> str:
        """Return the id of a budget by `organization/name` or id; raises Refused (404)."""
        return _id_of(self.budgets, key, "budget")

    def secret(self, workspace: Workspace, name: str) -> StoredSecret:
        """Return a secret by its case-sensitive name; raises Refused (404)."""
        if name not in workspace.secrets:
            raise Refused(404, f"secret {name!r} not found")
        return workspace.secrets[name]

    # making --------------------------------------------------------------------------------------------------------

    def add_workspace(self, name: str, *, budget_id: str = "", description: str = "") -> Workspace:
        """Create a workspace; raises Refused (409) if the name is in use."""
        with self.lock:
            if any(workspace.name == name for workspace in self.workspaces):
                raise Refused(409, f"workspace {name!r} already exists")
            self.workspaces.append(Workspace(name=name, budget_id=budget_id, description=description))
            return self.workspaces[-1]

    def add_cluster(self, name: str, *, num_nodes: int, gpus_per_node: int, **more: Any) -> Cluster:
        """Create a cluster with its nodes, each with its own loopback address."""
        with self.lock:
            cluster = Cluster(name=name, num_nodes=num_nodes, gpus_per_node=gpus_per_node, **more)
            for index in range(num_nodes):
                number = len(self.hosts) + 1
                address = f"{self._network}.{number // 250}.{number % 250 + 1}"
                hostname = f"{name.rpartition('/')[2]}-{index}.fake"
                if hostname in self.hosts:
                    hostname = f"{name.replace('/', '-')}-{index}.fake"
                self.hosts[hostname] = address
                cluster.nodes.append(Node(hostname=hostname, address=address))
            self.clusters.append(cluster)
            return cluster

    def add_dataset(self, name: str, workspace: Workspace, *, description: str = "", source_job: str = "") -> Dataset:
        """Create an empty dataset; raises Refused (400, 409) if the name is invalid or in use."""
        with self.lock:
            if name:
                self.check_name(name)
                if any(dataset.name == name for dataset in self.datasets):
                    raise Refused(409, f"dataset name {name!r} is already in use")
            identity = new_id()
            folder = self.folder / "datasets" / identity
            folder.mkdir(parents=True)
            self.datasets.append(
                Dataset(
                    id=identity,
                    name=name or identity,
                    folder=folder,
                    workspace_id=workspace.id,
                    description=description,
                    source_job=source_job,
                )
            )
            return self.datasets[-1]

    def commit(self, dataset: Dataset) -> None:
        """Make a dataset immutable. Idempotent."""
        with self.changed:
            dataset.committed_ns = dataset.committed_ns or time.time_ns()
            self.changed.notify_all()

    def add_image(self, name: str, *, workspace: Workspace, docker_id: str, **more: Any) -> StoredImage:
        """Create an image record, for the user or (`author/name`) another author; raises Refused (400, 409)."""
        author, _, short = name.rpartition("/")
        author = author or self.user
        with self.lock:
            self.check_name(short)
            if any((image.author, image.name) == (author, short) for image in self.images):
                raise Refused(409, f"image name {name!r} is already in use")
            self.images.append(
                StoredImage(name=short, author=author, workspace_id=workspace.id, docker_id=docker_id, **more)
            )
            return self.images[-1]

    def add_group(self, name: str, workspace: Workspace, *, description: str, experiment_ids: Iterable[str]) -> Group:
        """Create a group; raises Refused (400, 409) if the name is invalid or in use."""
        with self.lock:
            self.check_name(name)
            if any(group.name == name for group in self.groups):
                raise Refused(409, f"group name {name!r} is already in use")
            self.groups.append(
                Group(
                    name=name, workspace_id=workspace.id, description=description, experiment_ids=list(experiment_ids)
                )
            )
            return self.groups[-1]

    def write_secret(self, workspace: Workspace, name: str, value: str) -> StoredSecret:
        """Set the value of a new or existing secret."""
        with self.lock:
            secret = workspace.secrets.setdefault(name, StoredSecret(name=name, value=value))
            secret.value = value
            secret.updated_ns = time.time_ns()
            return secret


def _find(records: Iterable[_Named], key: str, kind: str, *, prefix: str) -> _Named:
    found = (record for record in records if key == record.id or key == prefix + record.name)
    return _first(found, f"{kind} {key!r} not found")


_Any = TypeVar("_Any")


def _first(found: Iterable[_Any], message: str) -> _Any:
    for record in found:
        return record
    raise Refused(404, message)


def _id_of(table: Mapping[str, str], key: str, kind: str) -> str:
    if key in table:
        return table[key]
    if key in table.values():
        return key
    raise Refused(404, f"{kind} {key!r} not found")
