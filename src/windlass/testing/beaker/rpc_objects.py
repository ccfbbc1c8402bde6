"""Calls about users, workspaces, secrets, clusters, datasets, images and groups."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Any

from windlass.testing.beaker.messages import Messages, asked, dataset_names, paged, pb
from windlass.testing.beaker.records import Dataset
from windlass.testing.beaker.world import BeakerState, Refused

__all__ = ["ProtocolObjects"]


class ProtocolObjects:
    """Half of the servicer; `rpc.Workloads` is the other half and also holds the state."""

    _world: BeakerState
    _messages: Messages

    # users and organizations ---------------------------------------------------------------------------------------------

    def GetUser(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        del context
        if request.user_id and request.user_id not in (self._world.user_id, self._world.user):
            raise Refused(404, f"user {request.user_id!r} not found")
        return pb.GetUserResponse(user=self._messages.user())

    def ResolveUserName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        if request.user_name != self._world.user:
            raise Refused(404, f"user {request.user_name!r} not found")
        return pb.ResolveUserNameResponse(user_id=self._world.user_id)

    def ListUsers(self, request: Any, context: Any) -> Any:  # noqa: N802
        del request, context
        return pb.ListUsersResponse(users=[self._messages.user()])

    def GetOrganization(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        identity = self._world.organization_id(request.organization_id)
        return pb.GetOrganizationResponse(organization=self._messages.organization(identity))

    def ResolveOrganizationName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        if request.organization_name not in self._world.organizations:
            raise Refused(404, f"organization {request.organization_name!r} not found")
        return pb.ResolveOrganizationNameResponse(organization_id=self._world.organizations[request.organization_name])

    def ListOrganizations(self, request: Any, context: Any) -> Any:  # noqa: N802
        del request, context
        organizations = [self._messages.organization(identity) for identity in self._world.organizations.values()]
        return pb.ListOrganizationsResponse(organizations=organizations)

    def ResolveBudgetName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        name = f"{request.organization_name}/{request.budget_name}"
        return pb.ResolveBudgetNameResponse(budget_id=self._world.budget_id(name))

    def GetBudget(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetBudgetResponse(budget=self._messages.budget(self._world.budget_id(request.budget_id)))

    def ListBudgets(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        page, token = paged(
            [self._messages.budget(identity) for identity in self._world.budgets.values()], options, start
        )
        return pb.ListBudgetsResponse(budgets=page, next_page_token=token)

    # workspaces ----------------------------------------------------------------------------------------------------

    def GetWorkspace(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        workspace = self._world.workspace(request.workspace_id)
        return pb.GetWorkspaceResponse(workspace=self._messages.workspace(workspace))

    def ResolveWorkspaceName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        workspace = self._world.workspace(f"{request.owner_name}/{request.workspace_name}")
        return pb.ResolveWorkspaceNameResponse(workspace_id=workspace.id)

    def ListWorkspaces(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            found = [
                workspace
                for workspace in self._world.workspaces
                if options.name_or_description_substring in f"{workspace.name} {workspace.description}"
                and workspace.is_archived == options.only_archived
            ]
            page, token = paged(sorted(found, key=lambda workspace: workspace.name), options, start)
            workspaces = [self._messages.workspace(workspace) for workspace in page]
            return pb.ListWorkspacesResponse(workspaces=workspaces, next_page_token=token)

    def CreateWorkspace(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        names = {identity: name for name, identity in self._world.organizations.items()}
        owner = names.get(request.organization_id, self._world.user)
        name = self._world.check_name(request.name)
        workspace = self._world.add_workspace(
            f"{owner}/{name}", description=request.description, budget_id=request.default_budget_id
        )
        return pb.CreateWorkspaceResponse(workspace=self._messages.workspace(workspace))

    def UpdateWorkspace(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            workspace = self._world.workspace(request.workspace_id)
            if request.HasField("name"):
                workspace.name = f"{workspace.name.split('/')[0]}/{self._world.check_name(request.name)}"
            if request.HasField("description"):
                workspace.description = request.description
            if request.HasField("archived"):
                workspace.is_archived = request.archived
            if request.HasField("maximum_workspace_priority"):
                workspace.maximum_priority = request.maximum_workspace_priority
            if request.HasField("budget_id"):
                workspace.budget_id = self._world.budget_id(request.budget_id)
            return pb.UpdateWorkspaceResponse(workspace=self._messages.workspace(workspace))

    def GetSecret(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        secret = self._world.secret(self._world.workspace(request.workspace_id), request.secret_name)
        return pb.GetSecretResponse(secret=self._messages.secret(secret))

    def ListSecrets(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            workspace = self._world.workspace(options.workspace_id)
            found = sorted(workspace.secrets.values(), key=lambda secret: secret.name)
        page, token = paged(found, options, start)
        return pb.ListSecretsResponse(secrets=[self._messages.secret(secret) for secret in page], next_page_token=token)

    # machines ------------------------------------------------------------------------------------------------------

    def GetCluster(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetClusterResponse(cluster=self._messages.cluster(self._world.cluster(request.cluster_id)))

    def ResolveClusterName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        cluster = self._world.cluster(f"{request.owner_name}/{request.cluster_name}")
        return pb.ResolveClusterNameResponse(cluster_id=cluster.id)

    def ListClusters(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        wanted = options.organization_id
        found = [
            cluster
            for cluster in sorted(self._world.clusters, key=lambda cluster: cluster.name)
            if not wanted or self._world.organizations.get(cluster.name.split("/")[0]) == wanted
        ]
        page, token = paged(found, options, start)
        return pb.ListClustersResponse(
            clusters=[self._messages.cluster(cluster) for cluster in page], next_page_token=token
        )

    def GetNode(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetNodeResponse(node=self._messages.node(*self._world.node(request.node_id)))

    def ListNodes(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        found = [
            (node, cluster)
            for cluster in self._world.clusters
            for node in cluster.nodes
            if not options.cluster_id or cluster.id == options.cluster_id
        ]
        page, token = paged(found, options, start)
        return pb.ListNodesResponse(nodes=[self._messages.node(*pair) for pair in page], next_page_token=token)

    # datasets ------------------------------------------------------------------------------------------------------

    def GetDataset(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetDatasetResponse(dataset=self._messages.dataset(self._world.dataset(request.dataset_id)))

    def ResolveDatasetName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        dataset = self._world.dataset(f"{request.author_name}/{request.dataset_name}")
        return pb.ResolveDatasetNameResponse(dataset_id=dataset.id)

    def ListDatasets(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            found = [dataset for dataset in self._world.datasets if _is_wanted(dataset, options)]
            page, token = paged(sorted(found, key=lambda dataset: dataset.name), options, start)
            datasets = [self._messages.dataset(dataset) for dataset in page]
            return pb.ListDatasetsResponse(datasets=datasets, next_page_token=token)

    def ListDatasetFiles(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        dataset = self._world.dataset(options.dataset_id)
        names = dataset_names(dataset.folder, options.prefix)
        page, token = paged(names, options, start)
        files = [self._messages.dataset_file(dataset, name) for name in page]
        return pb.ListDatasetFilesResponse(
            dataset_files=files,
            next_page_token=token,
            total_size=sum((dataset.folder / name).stat().st_size for name in names),
            file_count=len(names),
        )

    def UpdateDataset(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            dataset = self._world.dataset(request.dataset_id)
            if request.HasField("name"):
                dataset.name = self._world.check_name(request.name)
            if request.HasField("description"):
                dataset.description = request.description
            if request.HasField("committed"):
                self._world.commit(dataset)
            return pb.UpdateDatasetResponse(dataset=self._messages.dataset(dataset))

    def DeleteDatasets(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            for dataset in [self._world.dataset(identity) for identity in request.dataset_ids]:
                self._world.datasets.remove(dataset)
                shutil.rmtree(dataset.folder)
        return pb.DeleteDatasetsResponse()

    # images and groups ---------------------------------------------------------------------------------------------

    def GetImage(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetImageResponse(image=self._messages.image(self._world.image(request.image_id)))

    def ResolveImageName(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        image = self._world.image(f"{request.author_name}/{request.image_name}")
        return pb.ResolveImageNameResponse(image_id=image.id)

    def ListImages(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        wanted = options.image_name_or_description
        author = options.author_id
        found = [
            image
            for image in self._world.images
            if wanted in f"{image.name} {image.description}"
            and (not author or (author == self._world.user_id and image.author == self._world.user))
        ]
        page, token = paged(sorted(found, key=lambda image: image.name), options, start)
        return pb.ListImagesResponse(images=[self._messages.image(image) for image in page], next_page_token=token)

    def UpdateImage(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            image = self._world.image(request.image_id)
            if request.HasField("name"):
                image.name = self._world.check_name(request.name) if request.name else image.id
            if request.HasField("description"):
                image.description = request.description
            if request.HasField("committed"):
                image.committed_ns = image.committed_ns or time.time_ns()
            return pb.UpdateImageResponse(image=self._messages.image(image))

    def DeleteImages(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            for image in [self._world.image(identity) for identity in request.image_ids]:
                self._world.images.remove(image)
        return pb.DeleteImagesResponse()

    def GetGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        return pb.GetGroupResponse(group=self._messages.group(self._world.group(request.group_id)))

    def CreateGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        workspace = self._world.workspace(request.workspace_id)
        group = self._world.add_group(
            request.name,
            workspace,
            description=request.description,
            experiment_ids=_experiments(self._world, request.experiment_ids),
        )
        return pb.CreateGroupResponse(group=self._messages.group(group))

    def UpdateGroup(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            group = self._world.group(request.group_id)
            if request.HasField("name"):
                group.name = self._world.check_name(request.name)
            if request.HasField("description"):
                group.description = request.description
            group.experiment_ids.extend(_experiments(self._world, request.add_experiment_ids))
            group.modified_ns = time.time_ns()
            return pb.UpdateGroupResponse(group=self._messages.group(group))

    def DeleteGroups(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        with self._world.lock:
            for group in [self._world.group(identity) for identity in request.group_ids]:
                self._world.groups.remove(group)
        return pb.DeleteGroupsResponse()

    def ListGroups(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        found = [
            group
            for group in sorted(self._world.groups, key=lambda group: group.name)
            if options.name_or_description_substring in f"{group.name} {group.description}"
            and (not options.workspace_id or options.workspace_id == group.workspace_id)
        ]
        page, token = paged(found, options, start)
        return pb.ListGroupsResponse(groups=[self._messages.group(group) for group in page], next_page_token=token)

    def ListGroupTaskMetrics(self, request: Any, context: Any) -> Any:  # noqa: N802
        del context
        options, start = asked(request)
        with self._world.lock:
            group = self._world.group(options.group_id)
            experiments = [self._world.experiment(identity) for identity in group.experiment_ids]
            metrics = [
                pb.TaskMetrics(
                    task_id=task.id,
                    task_name=task.name,
                    experiment_id=experiment.id,
                    experiment_name=experiment.name,
                    task_status=int(task.job.status),
                )
                for experiment in experiments
                for task in experiment.tasks
            ]
        page, token = paged(metrics, options, start)
        return pb.ListGroupTaskMetricsResponse(task_metrics=page, next_page_token=token)


def _experiments(world: BeakerState, identities: Sequence[str]) -> list[str]:
    return [world.experiment(identity).id for identity in identities]


def _is_wanted(dataset: Dataset, options: Any) -> bool:
    wanted = [
        not options.workspace_id or dataset.workspace_id == options.workspace_id,
        options.name_or_description_substring in f"{dataset.name} {dataset.description}",
        options.dataset_type in (0, 2 if dataset.source_job else 1),
        options.committed_status in (0, 1 if dataset.committed_ns else 2),
    ]
    return all(wanted)
