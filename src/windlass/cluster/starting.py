"""Agents of a cluster's nodes: started side by side over shells, each asked until it is ready or has failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from windlass.cluster.config import HEAD, ClusterConfig, NodeGroupConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.nodes.kept_logs import keep_logs
from windlass.cluster.nodes.set_up import set_up_of
from windlass.cluster.nodes.sync import copy_files, packed_files
from windlass.cluster.places import MachinePlace
from windlass.config.emit import to_yaml
from windlass.core.errors import PreconditionError, UnreachableError, WaitTimeoutError, WindlassError
from windlass.supervise.node.ending import KEEP_FAILED_S
from windlass.supervise.node.spec import NodeSpec, NodeStatus

__all__ = ["PAUSE_S", "NodeStarter", "Report", "ready_words"]

Report = Callable[[str], None]
"""Called with a line for the user when something happens."""

PAUSE_S = 0.05
_ASK_AGAIN_S = 1.0
_START_S = 900.0
_RAY_PORT = 6379
_STORE_PORT = 6380
"""Ports on a rented head, which is the cluster's alone: Ray's own, and the one after it."""


def ready_words(name: str, status: NodeStatus) -> str:
    """Return the line of a node that is ready, with what its agent warns about."""
    return f"{name} is ready" + (f"; {status.message}" if status.message else "")


class NodeStarter:
    """Starts the agents of machines that the client reaches, side by side; the others wait for the head's address.

    Args:
        archive: the zipapp of the agents.
    """

    def __init__(
        self, home: ClusterHome, config: ClusterConfig, place: MachinePlace, archive: Path, report: Report
    ) -> None:
        self._home, self._config, self._place, self._archive, self._report = home, config, place, archive, report
        self._pool = ThreadPoolExecutor(max_workers=32)
        self._futures: dict[str, Future[NodeStatus]] = {}
        self._head = self._head_id = ""
        self._has_failed_head = self._is_closed = False
        self._is_head_decided = threading.Event()
        self._numbers: dict[str, int] = {}
        self.statuses: dict[str, NodeStatus] = {}
        self.errors: dict[str, WindlassError] = {}

    def look(self, machines: Sequence[Machine]) -> None:
        """Start the agents of new machines, and collect what became of others; does not block."""
        is_rented = self._place.provider.is_rented
        for machine in machines:
            if is_rented and machine.group != HEAD:
                continue  # its own first script starts its agent
            is_new = machine.id not in self._futures
            if is_new and machine.group == HEAD:
                self._head_id = machine.id
                self._futures[machine.id] = self._pool.submit(self._bring, machine, 0)
            elif is_new and self._head_id:  # the head has a thread before anybody waits for it
                number = self._numbers.setdefault(machine.id, 1 + len(self._numbers))
                self._futures[machine.id] = self._pool.submit(self._bring, machine, number)
        for name, future in self._futures.items():
            if future.done() and name not in self.statuses and name not in self.errors:
                self._collect(name, future)

    def _collect(self, name: str, future: Future[NodeStatus]) -> None:
        try:
            self.statuses[name] = future.result()
        except WindlassError as error:
            self.errors[name] = error
            if name == self._head_id:
                self._has_failed_head = True
                self._is_head_decided.set()
            self._report(f"{name}: {error.message}")
        else:
            self._report(ready_words(name, self.statuses[name]))

    def is_done(self, machines: Sequence[Machine]) -> bool:
        """Return whether every machine's node is ready or has failed."""
        is_rented = self._place.provider.is_rented
        ours = [each.id for each in machines if each.group == HEAD or not is_rented]
        return self._has_failed_head or all(each in self.statuses or each in self.errors for each in ours)

    def finish(self, machines: Sequence[Machine]) -> None:
        """Wait until every node is ready or has failed; without a head none is started."""
        self.look(machines)
        while self._head_id and not self.is_done(machines):
            time.sleep(PAUSE_S)
            self.look(machines)

    def close(self) -> None:
        """End the threads, within seconds."""
        self._is_closed = True
        self._is_head_decided.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _bring(self, machine: Machine, number: int) -> NodeStatus:
        """Start a node's agent unless it runs; return its status once it is ready."""
        host, end_s = self._place.host(machine), time.monotonic() + _START_S
        status, is_alive = self._first_status(host, machine, end_s)
        if status is None or not is_alive or status.state in {"failed", "ended"}:
            if self._place.provider.is_rented:
                self._store_head_files(host, machine)
            copy_files(self._config, host.shell)
            head = "" if machine.group == HEAD else self._await_head(host, end_s)
            self._check_wanted(host)  # copying takes long, and `down` may be over
            host.start(self._spec(machine, number, head), self._archive)
        elif self._is_ready(status, host, machine):
            return status
        for said in self._followed(host, machine, end_s):
            if said is not None and self._is_ready(said, host, machine):
                return said
            self._check_goes_on(host, end_s)
        raise AssertionError("unreachable: the status is followed without end")

    def _followed(self, host: NodeHost, machine: Machine, end_s: float) -> Iterator[NodeStatus | None]:
        """Yield what a node's agent says; a machine that responded before is asked again until the time is over."""
        while True:
            try:
                yield from host.follow(machine.token)
            except UnreachableError:
                if time.monotonic() > end_s:
                    raise
                self._check_wanted(host)
            time.sleep(_ASK_AGAIN_S)

    def _is_ready(self, status: NodeStatus, host: NodeHost, machine: Machine) -> bool:
        """Return whether a node is ready; raises PreconditionError if it never will be."""
        if machine.group == HEAD and status.head:
            self._head = status.head
            self._is_head_decided.set()
        if status.state in {"failed", "ended"}:
            raise self._failure(host, machine, status)
        return status.state == "ready"

    def _await_head(self, host: NodeHost, end_s: float) -> str:
        """Return the head's address once its agent has said it."""
        self._is_head_decided.wait(_START_S)
        self._check_goes_on(host, end_s)
        return self._head

    def _check_goes_on(self, host: NodeHost, end_s: float) -> None:
        """Raise an error if the node need not be waited for any longer."""
        self._check_wanted(host)
        if time.monotonic() > end_s:
            raise WaitTimeoutError(f"{host.shell.name} was not ready within {_START_S:g} s")

    def _check_wanted(self, host: NodeHost) -> None:
        """Raise an error if nobody wants the node any more."""
        if self._has_failed_head:
            raise PreconditionError(f"{host.shell.name}: the head failed", code="node-failed")
        if self._is_closed:
            raise PreconditionError(f"{host.shell.name}: its start was given up", code="node-failed")

    def _failure(self, host: NodeHost, machine: Machine, status: NodeStatus) -> PreconditionError:
        """Return the error of a node that failed; the logs of a rented one are kept here, since its machine will end."""
        message = f"{host.shell.name}: {status.message or status.state}"
        hint = f"windlass cluster logs {self._home.name} --node {machine.id}"
        if self._place.provider.is_rented and status.state == "failed":
            hint += f"; its machine ends itself {KEEP_FAILED_S / 60:g} minutes after the failure"
            try:
                keep_logs(self._home, host, machine)
            except WindlassError as error:
                message += f" (its logs were not fetched: {error.message})"
        return PreconditionError(message, hint=hint, code=status.code or "node-failed")

    def _first_status(self, host: NodeHost, machine: Machine, end_s: float) -> tuple[NodeStatus | None, bool]:
        """Return what a machine's agent last said, and if it runs; a rented machine that still boots is asked again."""
        while True:
            try:
                return host.agent(machine.token)
            except UnreachableError:
                if not self._place.provider.is_rented or self._is_closed or time.monotonic() > end_s:
                    raise
            time.sleep(_ASK_AGAIN_S)

    def _store_head_files(self, host: NodeHost, machine: Machine) -> None:
        """Store what Ray's autoscaler on the head needs to make machines: the cluster's file, and our code.

        Its file has the head's region alone: Ray's nodes are in one network.
        """
        from windlass.cluster.scaling.code import scaling_code  # lazy: only for rented places

        config = self._config.in_region(machine.choice.region)
        host.store(machine.token, "cluster.yaml", to_yaml(config).encode())
        host.store(machine.token, "code.zip", scaling_code())
        with packed_files(self._config) as packed:
            host.store(machine.token, "files.tar", packed)
        for name, content in self._place.head_files.items():
            host.store(machine.token, name, content)

    def _spec(self, machine: Machine, number: int, head: str) -> NodeSpec:
        config, place = self._config, self._place
        group = config.head if machine.group == HEAD else config.groups.get(machine.group, NodeGroupConfig())
        spec = NodeSpec(
            cluster=self._home.id,
            token=machine.token,
            number=number,
            head=head,
            group=machine.group,
            python=config.python,
            **set_up_of(config, group),
            resources=group.resources,
            labels=group.labels,
            ttl_s=config.ttl,
            idle_s=config.idle,
            auth_token=self._home.token,
        )
        if not place.provider.is_rented:
            return spec
        return replace(
            spec,
            address=machine.address,
            instance=machine.id,
            store_port=_STORE_PORT,
            ray_port=_RAY_PORT,
            shutdown=place.shutdown,
            metadata=place.metadata,
            is_scaled=True,
        )
