"""User account and workspaces, with their budgets, secrets, groups and images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windlass.backends.beaker.connection import BeakerConnection
from windlass.backends.beaker.values import BeakerGroup, BeakerImage, BeakerWorkspace
from windlass.core.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from windlass.backends.beaker.client import BeakerClient

__all__ = ["Workspaces"]

_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class Workspaces(BeakerConnection):
    """Part of the service that manages accounts, workspaces, secrets, groups and images."""

    def user(self) -> str:
        """Return the user's name at Beaker, which is fetched only once."""
        with self.asking("looking up the user of the token") as client:
            return self._id("user", "", lambda: client.user.get().name)

    def default_workspace(self) -> str:
        """Return the full name of the default workspace; empty if none is set. Makes no call."""
        return self.account.default_workspace

    def workspace(self, name: str = "") -> BeakerWorkspace:
        """Return a workspace by its full name; an empty name means the default one. Raises NotFoundError."""
        with self.asking(f"reading {f'workspace {name}' if name else 'the default workspace'}") as client:
            request = client.messages.GetWorkspaceRequest(workspace_id=self._workspace_id(client, name))
            seen: BeakerWorkspace = client.decoding.workspace_of(client.rpc("GetWorkspace", request).workspace)
        return seen

    def create_workspace(self, name: str, *, description: str = "", budget: str = "") -> BeakerWorkspace:
        """Create a workspace, or reuse the one with this name, and set its budget.

        Args:
            name: `ORGANIZATION/NAME`.
            budget: `ORGANIZATION/NAME`; empty to set none.
        """
        organization, slash, short = name.partition("/")
        if not slash or not short:
            hint = "write ORGANIZATION/NAME, such as `ai2/my-workspace`"
            raise UsageError(f"`{name}` is not the full name of a workspace", hint=hint, code="beaker-workspace")
        with self.asking(f"creating workspace {name}") as client:
            try:
                found = client.workspace.get(name)
            except client.errors.BeakerNotFoundError:
                found = client.rpc(
                    "CreateWorkspace",
                    client.messages.CreateWorkspaceRequest(
                        name=short,
                        organization_id=client.organization.resolve_org_id(organization),
                        description=description or None,
                    ),
                ).workspace
            seen: BeakerWorkspace = client.decoding.workspace_of(found)
        return self.set_budget(name, budget) if budget else seen

    def set_budget(self, workspace: str, budget: str) -> BeakerWorkspace:
        """Set the default budget to which a workspace's experiments are charged."""
        with self.asking(f"setting the budget of workspace {workspace}") as client:
            request = client.messages.UpdateWorkspaceRequest(
                workspace_id=self._workspace_id(client, workspace),
                budget_id=client.workspace.resolve_budget_id(budget),
            )
            seen: BeakerWorkspace = client.decoding.workspace_of(
                client.rpc("UpdateWorkspace", request, is_idempotent=True).workspace
            )
        return seen

    def secrets(self, workspace: str = "") -> tuple[str, ...]:
        """Return the sorted names of a workspace's secrets."""
        with self.asking(
            f"listing the secrets of {f'workspace {workspace}' if workspace else 'the default workspace'}"
        ) as client:
            options = client.messages.ListSecretsRequest.Opts(
                workspace_id=self._workspace_id(client, workspace), page_size=client.secret.MAX_PAGE_SIZE
            )
            pages = client.pages("ListSecrets", client.messages.ListSecretsRequest(options=options))
            return tuple(sorted(secret.name for page in pages for secret in page.secrets))

    def write_secret(self, name: str, value: str | bytes, *, workspace: str = "") -> None:
        """Store a secret in a workspace, replacing an existing value. Idempotent."""
        if not _SECRET_NAME.fullmatch(name):
            hint = "use letters, digits, `_`, `.` and `-`"
            raise UsageError(f"`{name}` is not a valid secret name", hint=hint, code="invalid-name")
        with self.asking(f"writing secret {name}") as client:
            client.secret.http_request(
                f"workspaces/{self._workspace_id(client, workspace)}/secrets/{name}/value",
                method="PUT",
                data=value.encode() if isinstance(value, str) else value,
            )

    def groups(self, workspace: str = "") -> tuple[BeakerGroup, ...]:
        """Return a workspace's groups, sorted by name."""
        with self.asking(
            f"listing the groups of {f'workspace {workspace}' if workspace else 'the default workspace'}"
        ) as client:
            options = client.messages.ListGroupsRequest.Opts(
                organization_id=self._organization_id(client, workspace),
                workspace_id=self._workspace_id(client, workspace),
                page_size=client.group.MAX_PAGE_SIZE,
            )
            pages = client.pages("ListGroups", client.messages.ListGroupsRequest(options=options))
            found = [client.decoding.group_of(group) for page in pages for group in page.groups]
        return tuple(sorted(found, key=lambda group: group.name))

    def add_to_group(self, group: str, experiments: Sequence[str], *, workspace: str = "") -> BeakerGroup:
        """Add experiments to a group in a workspace; the group is created if missing.

        Args:
            group: `OWNER/NAME`, or only the name: the user's own group is preferred to another user's.

        Raises:
            NotFoundError: there is no such group, and another user would own it.
        """
        owner, slash, short = group.rpartition("/")
        found = [one for one in self.groups(workspace) if one.name == group or (not slash and _is_called(one, short))]
        known = next((one for one in found if one.name == f"{self.user()}/{short}"), found[0] if found else None)
        if known is None and slash and owner != self.user():
            hint = f"ask {owner} to create it, or name one of yours: --add {short}"
            raise NotFoundError(f"Beaker has no group `{group}`", hint=hint, code="beaker-not-found")
        with self.asking(f"adding to group {group}") as client:
            return self._grouped(client, short, known, experiments, workspace)

    def image(self, name: str) -> BeakerImage:
        """Return an image by its id or `AUTHOR/NAME`; raises NotFoundError."""
        with self.asking(f"looking at image {name}") as client:
            try:
                seen: BeakerImage = client.decoding.image_of(client.image.get(name))
            except client.errors.BeakerNotFoundError as error:
                hint = f"write AUTHOR/NAME, such as `{self._id('user', '', lambda: client.user.get().name)}/{name}`"
                told = "" if "/" in name else hint
                raise NotFoundError(f"Beaker has no image `{name}`", hint=told, code="beaker-not-found") from error
        return seen

    def _grouped(
        self,
        client: BeakerClient,
        name: str,
        known: BeakerGroup | None,
        experiments: Sequence[str],
        workspace: str,
    ) -> BeakerGroup:
        messages = client.messages
        if known is not None:
            change = messages.UpdateGroupRequest(group_id=known.id, add_experiment_ids=list(experiments))
            group = client.rpc("UpdateGroup", change, is_idempotent=True).group
        else:
            request = messages.CreateGroupRequest(
                workspace_id=self._workspace_id(client, workspace), name=name, experiment_ids=list(experiments)
            )
            group = client.rpc("CreateGroup", request).group
        seen: BeakerGroup = client.decoding.group_of(group)
        return seen


def _is_called(group: BeakerGroup, short: str) -> bool:
    return group.name.rpartition("/")[2] == short
