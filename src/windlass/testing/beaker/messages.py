"""Conversion of records to protocol messages. The generated code is untyped, so everything is `Any`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from beaker import beaker_pb2 as generated
from google.protobuf.duration_pb2 import Duration  # type: ignore[import-untyped]
from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped]

from windlass.testing.beaker.acceptance import constrained_to
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
)
from windlass.testing.beaker.world import BeakerState

__all__ = ["Messages", "asked", "dataset_names", "paged", "pb", "stamp"]

pb: Any = generated
_Any = TypeVar("_Any")
_PRIORITIES = {"low": 1, "normal": 2, "high": 3, "urgent": 4, "immediate": 5}
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}


class Messages:
    """Builder of protocol messages from a Beaker state."""

    def __init__(self, world: BeakerState) -> None:
        self._world = world

    def user(self) -> Any:
        """Return the only user."""
        details = pb.UserDetails(email=f"{self._world.user}@example.org", role=pb.AuthRole.AUTH_ROLE_SCIENTIST)
        return pb.User(
            id=self._world.user_id, name=self._world.user, display_name=self._world.user, user_details=details
        )

    def organization(self, identity: str) -> Any:
        """Return the organization with an id."""
        names = {value: name for name, value in self._world.organizations.items()}
        return pb.Organization(id=identity, name=names.get(identity, identity), display_name=names.get(identity, ""))

    def budget(self, identity: str) -> Any:
        """Return the budget with an id."""
        full_name = next(name for name, value in self._world.budgets.items() if value == identity)
        organization, name = full_name.split("/", 1)
        return pb.Budget(
            id=identity,
            organization_id=self._world.organizations.get(organization, ""),
            name=name,
            organization_name=organization,
            full_name=full_name,
        )

    def workspace(self, workspace: Workspace) -> Any:
        """Return a workspace."""
        owner = workspace.name.split("/")[0]
        return pb.Workspace(
            id=workspace.id,
            created=stamp(workspace.created_ns),
            modified=stamp(workspace.created_ns),
            name=workspace.name,
            description=workspace.description,
            owner_org=self.organization(self._world.organizations.get(owner, owner)),
            author_user=self.user(),
            archived=workspace.is_archived,
            maximum_workload_priority=workspace.maximum_priority,
            budget_id=workspace.budget_id or None,
            slot_limit_preemptible=workspace.slot_limit or None,
        )

    def secret(self, secret: StoredSecret) -> Any:
        """Return a secret, without its value."""
        return pb.Secret(
            name=secret.name,
            created=stamp(secret.created_ns),
            updated=stamp(secret.updated_ns),
            author_id=self._world.user_id,
        )

    def cluster(self, cluster: Cluster) -> Any:
        """Return a cluster with the numbers of its free machines and accelerators."""
        total = cluster.num_nodes * cluster.gpus_per_node
        organization, name = cluster.name.split("/", 1)
        return pb.Cluster(
            id=cluster.id,
            created=stamp(cluster.created_ns),
            name=name,
            organization_id=self._world.organizations.get(organization, ""),
            organization_name=organization,
            on_premise_details=pb.OnPremiseClusterDetails(),
            node_count=cluster.num_nodes,
            expected_node_count=cluster.num_nodes,
            node_shape=pb.NodeShape(cpu_count=124, gpu_count=cluster.gpus_per_node, gpu_type=cluster.gpu_type),
            aliases=cluster.aliases,
            tags=cluster.tags,
            cluster_occupancy=pb.ClusterOccupancy(slot_counts=pb.SlotCounts(total=total, available=total)),
        )

    def node(self, node: Node, cluster: Cluster) -> Any:
        """Return a machine."""
        gpus = [f"gpu-{index}" for index in range(cluster.gpus_per_node)]
        return pb.Node(
            id=node.id,
            cluster_id=cluster.id,
            hostname=node.hostname,
            cordon_details=pb.CordonDetails(cordon_reason="cordoned") if node.is_cordoned else None,
            node_resources=pb.NodeResources(cpu_count=124, gpu_ids=gpus, gpu_type=cluster.gpu_type),
        )

    def image(self, image: StoredImage) -> Any:
        """Return an image."""
        return pb.Image(
            id=image.id,
            name=image.name,
            full_name=f"{image.author}/{image.name}",
            workspace_id=image.workspace_id,
            author_id=self._world.user_id if image.author == self._world.user else image.author,
            created=stamp(image.created_ns),
            committed=stamp(image.committed_ns),
            docker_id=image.docker_id,
            original_tag=image.tag,
            description=image.description,
        )

    def group(self, group: Group) -> Any:
        """Return a group."""
        return pb.Group(
            id=group.id,
            name=group.name,
            full_name=f"{self._world.user}/{group.name}",
            description=group.description,
            workspace_id=group.workspace_id,
            author_id=self._world.user_id,
            created=stamp(group.created_ns),
            modified=stamp(group.modified_ns),
        )

    def dataset(self, dataset: Dataset) -> Any:
        """Return a dataset."""
        return pb.Dataset(
            id=dataset.id,
            name=dataset.name,
            full_name=f"{self._world.user}/{dataset.name}",
            author_id=self._world.user_id,
            workspace_id=dataset.workspace_id,
            created=stamp(dataset.created_ns),
            committed=stamp(dataset.committed_ns),
            description=dataset.description,
            source_execution=dataset.source_job or None,
        )

    def dataset_file(self, dataset: Dataset, name: str) -> Any:
        """Return a file of a dataset, with its digest once it can no longer change."""
        path = dataset.folder / name
        info = path.stat()
        digest = None
        if dataset.committed_ns:
            if name not in dataset.digests:
                dataset.digests[name] = hashlib.sha256(path.read_bytes()).digest()
            digest = pb.DatasetFile.Digest(algorithm=pb.DatasetFile.ALGORITHM_TYPE_SHA256, value=dataset.digests[name])
        return pb.DatasetFile(path=name, size=info.st_size, updated=stamp(info.st_mtime_ns), digest=digest)

    def workload(self, experiment: StoredExperiment) -> Any:
        """Return an experiment with its tasks."""
        inner = pb.Experiment(
            id=experiment.id,
            name=experiment.name,
            author_id=self._world.user_id,
            workspace_id=experiment.workspace_id,
            description=experiment.description,
            created=stamp(experiment.created_ns),
            canceled=stamp(experiment.canceled_ns),
            canceled_for=experiment.canceled_for or None,
            tasks=[self.task(task) for task in experiment.tasks],
        )
        return pb.Workload(experiment=inner, status=int(experiment.status), budget_id=experiment.budget_id or None)

    def task(self, task: StoredTask) -> Any:
        """Return a task, or one replica of it."""
        return pb.Task(
            id=task.id,
            experiment_id=task.experiment.id,
            name=task.name,
            author_id=self._world.user_id,
            created=stamp(task.created_ns),
            container_spec=_container(task.spec),
            system_details=self._system(task),
            status=int(task.job.status),
        )

    def job(self, job: StoredJob) -> Any:
        """Return a job with its times and its node."""
        experiment = job.task.experiment
        return pb.Job(
            id=job.id,
            task_id=job.task.id,
            name=job.task.name,
            author_id=self._world.user_id,
            workspace_id=experiment.workspace_id,
            workload_id=experiment.id,
            workload_created=stamp(experiment.created_ns),
            status=_status(job),
            container_spec=_container(job.task.spec),
            system_details=self._system(job.task),
            assignment_details=self._assignment(job),
            retry_ancestor_id=job.retry_ancestor or None,
            workspace_reference=self._world.workspace(experiment.workspace_id).name,
            author_reference=self._world.user,
            budget_id=experiment.budget_id or None,
        )

    def _assignment(self, job: StoredJob) -> Any:
        if job.node is None:
            return None
        resources = job.task.spec.get("resources") or {}
        return pb.AssignmentDetails(
            node_id=job.node.id,
            result_dataset_id=None if job.results is None else job.results.id,
            resource_assignment=pb.ResourceAssignment(
                cpu_count=float(resources.get("cpuCount") or 15.5),
                gpus=[f"gpu-{index}" for index in range(resources.get("gpuCount") or 0)],
            ),
        )

    def _system(self, task: StoredTask) -> Any:
        context = task.spec.get("context") or {}
        kinds = (("cluster", 1), ("hostname", 2))
        placement = [
            pb.JobPlacementConstraint(type=number, values=constrained_to(task.spec, key))
            for key, number in kinds
            if constrained_to(task.spec, key)
        ]
        replica = None
        if task.is_replica:
            replica = pb.ReplicaGroupDetails(
                id=task.group_id,
                size=task.size,
                rank=task.rank,
                is_leader_replica=bool(task.spec.get("leaderSelection")) and task.rank == 0,
                synchronized_start_timeout=_duration(task.spec.get("synchronizedStartTimeout")),
            )
        return pb.SystemDetails(
            priority=_PRIORITIES[context.get("priority") or "normal"],
            timeout=_duration(task.spec.get("timeout")),
            placement_constraints=placement,
            replica_group_details=replica,
            propagate_failure=task.spec.get("propagateFailure"),
            propagate_preemption=task.spec.get("propagatePreemption"),
            min_runtime=_duration(context.get("minRuntime")),
            auto_resume=context.get("autoResume", "preemptible" not in context),
        )


def stamp(at_ns: int) -> Any:
    """Return a timestamp of the protocol, or None for a time that is not set."""
    return Timestamp(seconds=at_ns // 10**9, nanos=at_ns % 10**9) if at_ns else None


def asked(request: Any) -> tuple[Any, int]:
    """Return the options and the start position of a list request.

    Options and token are a `oneof`: the call for the next page carries the token alone, which therefore holds both.
    """
    if not request.next_page_token:
        return request.options, 0
    position, _, packed = request.next_page_token.partition(":")
    options = type(request.options)()
    options.ParseFromString(base64.b64decode(packed))
    return options, int(position)


def paged(found: Sequence[_Any], options: Any, start: int) -> tuple[Sequence[_Any], str]:
    """Return one page of a list and the token for the next page."""
    end = start + (getattr(options, "page_size", 0) or 50)
    packed = base64.b64encode(options.SerializeToString()).decode()
    return found[start:end], f"{end}:{packed}" if end < len(found) else ""


def dataset_names(folder: Path, prefix: str) -> list[str]:
    """Return the names of a dataset's files that start with a prefix."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name.startswith(prefix))


def _duration(nanoseconds: int | None) -> Any:
    if nanoseconds is None:
        return None
    return Duration(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)


def _status(job: StoredJob) -> Any:
    return pb.JobStatus(
        status=int(job.status),
        created=stamp(job.created_ns),
        scheduled=stamp(job.scheduled_ns),
        ready=stamp(job.ready_ns),
        started=stamp(job.started_ns),
        exited=stamp(job.exited_ns),
        failed=stamp(job.failed_ns),
        canceled=stamp(job.canceled_ns),
        finalized=stamp(job.finalized_ns),
        exit_code=job.exit_code,
        message=job.message or None,
        canceled_for=job.canceled_for or None,
        canceled_code=None if job.canceled_code is None else int(job.canceled_code),
        failed_scheduling_message=job.scheduling_message or None,
    )


def _container(spec: Mapping[str, Any]) -> Any:
    resources = spec.get("resources") or {}
    return pb.ContainerSpec(
        image_id=spec["image"].get("beaker"),
        docker_reference=spec["image"].get("docker"),
        command=spec.get("command") or (),
        arguments=spec.get("arguments") or (),
        environment_variables=[
            pb.EnvironmentVariable(
                name=variable["name"],
                secret_reference=variable.get("secret"),
                literal=None if variable.get("secret") else variable.get("value") or "",
            )
            for variable in spec.get("envVars") or ()
        ],
        mounts=[_mount(mount) for mount in spec.get("datasets") or ()],
        result_path=(spec.get("result") or {}).get("path"),
        host_networking=bool(spec.get("hostNetworking")),
        resource_request=pb.ResourceRequest(
            cpu_count=resources.get("cpuCount"),
            gpu_count=resources.get("gpuCount"),
            memory_bytes=_bytes(resources.get("memory")),
            shared_memory_bytes=_bytes(resources.get("sharedMemory")),
        ),
    )


def _mount(mount: Mapping[str, Any]) -> Any:
    source = mount["source"]
    return pb.Mount(
        mount_path=mount["mountPath"],
        sub_path=mount.get("subPath"),
        dataset_id=source.get("beaker"),
        host_path=source.get("hostPath"),
        secret_reference=source.get("secret"),
        weka=source.get("weka"),
    )


def _bytes(size: str | None) -> int | None:
    if not size:
        return None
    match = re.match(r"([\d.]+)\s*([kmgt]?)(i?)", size.lower())
    assert match is not None
    unit = _UNITS[match.group(2)]
    if match.group(3):
        unit = 1024 ** "kmgt".index(match.group(2)) * 1024
    return int(float(match.group(1)) * unit)
