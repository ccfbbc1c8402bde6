"""Who we are, and what a workspace holds: its budget, secrets, groups of experiments, images."""

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
    """The part of the service that speaks of accounts, workspaces, secrets, groups and images."""

    def user(self) -> str:
        """Our name at Beaker; asked for once."""
        with self.asking("asking who the token belongs to") as client:
            return self._id("user", "", lambda: client.user.get().name)

    def default_workspace(self) -> str:
        """The full name of the workspace that is meant where none is named; empty: none. Asks nobody."""
        return self.account.default_workspace

    def workspace(self, name: str = "") -> BeakerWorkspace:
        """A workspace by its full name; empty: the default one. Raises NotFoundError."""
        with self.asking(f"looking at workspace {name or 'of the config file'}") as client:
            request = client.messages.GetWorkspaceRequest(workspace_id=self._workspace_id(client, name))
            seen: BeakerWorkspace = client.decoding.workspace_of(client.rpc("GetWorkspace", request).workspace)
        return seen

    def create_workspace(self, name: str, *, description: str = "", budget: str = "") -> BeakerWorkspace:
        """Make a workspace; one of that name that is there already is taken, and gets the budget.

        Args:
            name: `ORGANIZATION/NAME`.
            budget: `ORGANIZATION/NAME`; empty: none is set.
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
        """Give a workspace the budget that its experiments are charged to where they name none."""
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
        """The names of a workspace's secrets, in order."""
        with self.asking(f"listing the secrets of workspace {workspace or 'of the config file'}") as client:
            options = client.messages.ListSecretsRequest.Opts(
                workspace_id=self._workspace_id(client, workspace), page_size=client.secret.MAX_PAGE_SIZE
            )
            pages = client.pages("ListSecrets", client.messages.ListSecretsRequest(options=options))
            return tuple(sorted(secret.name for page in pages for secret in page.secrets))

    def write_secret(self, name: str, value: str | bytes, *, workspace: str = "") -> None:
        """Keep a secret in a workspace; one of that name gets the new value. Idempotent."""
        if not _SECRET_NAME.fullmatch(name):
            hint = "use letters, digits, `_`, `.` and `-`"
            raise UsageError(f"`{name}` is not a valid name of a secret", hint=hint, code="secret-refused")
        with self.asking(f"writing secret {name}") as client:
            client.secret.http_request(
                f"workspaces/{self._workspace_id(client, workspace)}/secrets/{name}/value",
                method="PUT",
                data=value.encode() if isinstance(value, str) else value,
            )

    def groups(self, workspace: str = "") -> tuple[BeakerGroup, ...]:
        """The groups of a workspace, by name."""
        with self.asking(f"listing the groups of workspace {workspace or 'of the config file'}") as client:
            options = client.messages.ListGroupsRequest.Opts(
                organization_id=self._organization_id(client, workspace),
                workspace_id=self._workspace_id(client, workspace),
                page_size=client.group.MAX_PAGE_SIZE,
            )
            pages = client.pages("ListGroups", client.messages.ListGroupsRequest(options=options))
            found = [client.decoding.group_of(group) for page in pages for group in page.groups]
        return tuple(sorted(found, key=lambda group: group.name))

    def add_to_group(self, group: str, experiments: Sequence[str], *, workspace: str = "") -> BeakerGroup:
        """Put experiments into a group of a workspace, which is made where there is none of that name.

        Args:
            group: `OWNER/NAME`, or the name alone: one of ours before one of somebody else.

        Raises:
            NotFoundError: there is no such group, and somebody else would own it.
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
        """An image by its id or `AUTHOR/NAME`; raises NotFoundError."""
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
