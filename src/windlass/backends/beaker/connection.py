"""Connection to Beaker for one account, which is opened on the first call; every call has a deadline."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass.backends.beaker.account import BeakerAccount, read_account
from windlass.core.errors import InternalError, PreconditionError, WindlassError

if TYPE_CHECKING:
    from windlass.backends.beaker.client import BeakerClient

__all__ = ["BeakerConnection"]


class BeakerConnection:
    """Connection that the parts of `BeakerService` share.

    Args:
        account: None for the one that the environment defines, read on the first call.
        deadline_s: time limit of a request.
        environ: variables that define the account; None for this process's environment.
    """

    def __init__(
        self,
        account: BeakerAccount | None = None,
        *,
        deadline_s: float = 30.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.deadline_s = deadline_s
        self._environ = environ
        self._account = account
        self._client: BeakerClient | None = None
        self._ids: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    @property
    def account(self) -> BeakerAccount:
        """Return the account. Raises AccessError or PreconditionError, like `read_account`."""
        if self._account is None:
            self._account = read_account(self._environ)
        return self._account

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextlib.contextmanager
    def asking(self, what: str, limit_s: float | None = None) -> Iterator[BeakerClient]:
        """Yield the client for one request.

        Args:
            what: what is being done, for messages: `cancelling experiment 01J...`.

        Raises:
            WindlassError: any error raised in the block, translated; see `errors.translate`.
        """
        client = self._opened()
        from windlass.backends.beaker.client import deadline  # lazy: grpc and requests cost half a second
        from windlass.backends.beaker.errors import REFUSALS, translate  # lazy: as above

        with deadline(what, limit_s or self.deadline_s):
            try:
                yield client
            except WindlassError:
                raise
            except REFUSALS as error:
                raise translate(error, what) from error

    def _opened(self) -> BeakerClient:
        with self._lock:
            if self._client is None:
                try:
                    from windlass.backends.beaker.client import (
                        BeakerClient,
                    )  # lazy: grpc and requests cost half a second
                except ModuleNotFoundError as error:
                    raise _not_installed(error) from error
                self._client = BeakerClient(self.account, limit_s=self.deadline_s)
            return self._client

    def _id(self, kind: str, name: str, resolve: Callable[[], Any]) -> str:
        """Return the id for a name; it is fetched only once."""
        if (kind, name) not in self._ids:
            self._ids[kind, name] = str(resolve())
        return self._ids[kind, name]

    def _workspace_id(self, client: BeakerClient, workspace: str) -> str:
        """Return the id of a workspace; an empty name means the default one."""
        return self._id("workspace", workspace, lambda: client.workspace.resolve_workspace_id(workspace or None))

    def _organization_id(self, client: BeakerClient, workspace: str = "") -> str:
        """Return the id of a workspace's organization, or of the default organization."""
        name = workspace.partition("/")[0] if "/" in workspace else ""
        return self._id("organization", name, lambda: client.organization.resolve_org_id(name or None))


def _not_installed(error: ModuleNotFoundError) -> WindlassError:
    if (error.name or "").startswith("windlass"):
        return InternalError(str(error))
    message = f"Beaker's client is not installed: there is no module `{error.name}`"
    return PreconditionError(message, hint="pip install 'windlass[beaker]'", code="extra-missing")
