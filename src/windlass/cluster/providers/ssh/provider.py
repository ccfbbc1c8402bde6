"""Provider of machines that exist: `create` claims a host, `terminate` ends our processes there and gives it back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from windlass.backends.site_shell import SiteShell
from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.machine import Choice, Machine, Notice
from windlass.cluster.nodes.host import NodeHost, in_parallel
from windlass.cluster.providers.protocol import CreateRequest, NoCapacityError, UncertainError
from windlass.core.errors import Problem, UnreachableError, WindlassError

__all__ = ["SshProvider"]


class SshProvider:
    """Hosts of a cluster's file. A node's id is `HOST/TOKEN`.

    Args:
        hosts: names of the hosts; the first is for the head.
        shell: opens a shell on a host.
        archive: the zipapp of the node's agent.
    """

    name = "ssh"
    window_s = 0.0
    is_rented = False

    def __init__(self, hosts: Sequence[str], shell: Callable[[str], SiteShell], archive: Path) -> None:
        self.hosts, self._shell, self._archive = tuple(hosts), shell, archive
        self.unreachable: dict[str, WindlassError] = {}
        self._cluster = ""

    def host(self, name: str, cluster: str) -> NodeHost:
        """Return a machine."""
        return NodeHost(self._shell(name), cluster)

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        """Return the hosts that do not respond."""
        errors = in_parallel(self.hosts, lambda name: self._shell(name).run(["true"]))
        return [
            Problem(error.message, error.code, hint=error.hint) for error in errors if isinstance(error, WindlassError)
        ]

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        """Return the hosts that a group's nodes may have: the first for the head, the others for all groups."""
        return [Choice(zone=name, most=1) for name in (self.hosts[:1] if group == HEAD else self.hosts[1:])]

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        """Return the claimed hosts, without those that do not respond: `unreachable` has them."""
        self._cluster = cluster
        found = in_parallel(self.hosts, lambda name: self._nodes(name, cluster))
        self.unreachable = {
            name: each for name, each in zip(self.hosts, found, strict=True) if isinstance(each, WindlassError)
        }
        return [node for nodes in found if not isinstance(nodes, WindlassError) for node in nodes]

    def find(self, token: str) -> Sequence[Machine]:
        """Return the hosts that a request claimed.

        Raises:
            UncertainError: a host does not respond.
        """
        found = [node for node in self.list_machines(self._cluster) if node.token == token]
        if not found and self.unreachable:
            raise UncertainError(next(iter(self.unreachable.values())).message)
        return found

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        """Claim a host: the one that the choice names.

        Raises:
            NoCapacityError: it does not respond, or is claimed already.
            UncertainError: the connection was lost.
        """
        name = request.choice.zone
        host = self.host(name, request.cluster)
        try:
            claimed = self._nodes(name, request.cluster)
        except UnreachableError as error:
            raise NoCapacityError(error.message, hint=error.hint) from error
        ours = [node for node in claimed if node.token == request.token]
        if ours:
            return ours
        if claimed:
            raise NoCapacityError(f"{name} is in use", hint=f"`windlass cluster reconcile` looks after {claimed[0].id}")
        claim = {"group": request.group, "token": request.token, "at": time.time()}
        try:
            host.store(request.token, "claim.json", json.dumps(claim).encode())
        except UnreachableError as error:
            raise UncertainError(error.message, hint=error.hint) from error
        return [_machine(name, claim)]

    def terminate(self, ids: Sequence[str]) -> None:
        """End our processes on hosts, and give them back."""
        errors = in_parallel(ids, self._terminate)
        lost = [error for error in errors if isinstance(error, UnreachableError)]
        other = [error for error in errors if isinstance(error, WindlassError) and error not in lost]
        if other:
            raise other[0]
        if lost:
            raise UncertainError(lost[0].message, hint=lost[0].hint)

    def _terminate(self, node: str) -> None:
        name, _, token = node.rpartition("/")
        self.host(name, self._cluster).stop(token, self._archive)

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        """Return the hosts that are claimed; others were given back, which is their end.

        Raises:
            UncertainError: one of them does not respond.
        """
        listed = {node.id: node for node in self.list_machines(self._cluster)}
        lost = [name for name in self.unreachable if any(each.startswith(f"{name}/") for each in ids)]
        if lost:
            raise UncertainError(self.unreachable[lost[0]].message)
        gone = Machine(id="", token="", group="", state="ended", ended_at=time.time(), why="given back")
        return [listed.get(each) or replace(gone, id=each, token=each.rpartition("/")[2]) for each in ids]

    def notices(self) -> Sequence[Notice]:
        """Return nothing: nobody takes these machines back."""
        return []

    def _nodes(self, name: str, cluster: str) -> list[Machine]:
        """Return the claims on a host."""
        claims = self.host(name, cluster).claims()
        # One that ended itself is left out: the host is free again.
        return [_machine(name, claim) for claim, status in claims if status is None or status.state != "ended"]


def _machine(name: str, claim: Mapping[str, object]) -> Machine:
    token = str(claim["token"])
    return Machine(
        id=f"{name}/{token}",
        token=token,
        group=str(claim["group"]),
        state="running",
        address=name.rpartition("@")[2],
        choice=Choice(zone=name),
        born_at=float(str(claim["at"])),
    )
