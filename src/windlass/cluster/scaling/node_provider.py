"""Ray's interface to our providers, in the monitor of its autoscaler: nodes of Ray are machines of the fleet.

Ray calls it from several threads. Everything that it must know after a restart is in the fleet's journal.
Source: `ray.autoscaler.node_provider.NodeProvider` of Ray 2.40 to 2.60, which version 2 of the autoscaler wraps.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    STATUS_UP_TO_DATE,
    TAG_RAY_LAUNCH_REQUEST,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from windlass.cluster.config import HEAD
from windlass.cluster.machine import Machine
from windlass.cluster.places import open_provider
from windlass.cluster.providers.protocol import CreateRequest, NoCapacityError
from windlass.cluster.scaling.fleet import Fleet, FleetLimits
from windlass.cluster.scaling.monitor import INITIAL_DONE, read_config, write_ray_config
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError
from windlass.core.files import write_atomic
from windlass.record.journal import JournalWriter, read_journal
from windlass.supervise.node.boot import NodeBoot, render_boot
from windlass.supervise.node.head_link import silence_limit_s
from windlass.supervise.node.ray_monitor import TURN
from windlass.supervise.node.seal import FLEET_JOURNAL, FLEET_WRITER, is_sealed
from windlass.supervise.node.spec import NodeFolder
from windlass.supervise.node.store import node_statuses

__all__ = ["ClusterNodeProvider"]

_MOST_FAILURES = 3
"""Nodes of a group in a row whose set-up or Ray failed, after which the group gets no more for a while."""

_FAILURE_PAUSE_S = 300.0


class ClusterNodeProvider(NodeProvider):
    """Nodes of one cluster.

    Args:
        provider_config: the section `provider` of Ray's file; `folder` is the head's.
        cluster_name: id of the cluster.
    """

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._folder = Path(provider_config["folder"])
        self._config, self._clock = read_config(self._folder), SystemClock()
        self._head = NodeFolder(self._folder).read_spec()
        provider = open_provider(self._config, cluster=cluster_name, folder=self._folder)
        journal = JournalWriter(self._folder / FLEET_JOURNAL, FLEET_WRITER, self._clock)
        records = read_journal(self._folder / FLEET_JOURNAL)  # under the lock: a seal is seen by whoever comes after it
        if is_sealed(records):
            message = f"{cluster_name} is being brought down: no further machines are made"
            raise PreconditionError(message, hint="`windlass cluster up` again makes some", code="cluster-down")
        self._fleet = Fleet(
            cluster_name,
            provider,
            journal,
            records,
            choices=lambda group: provider.choices(self._config, group),
            clock=self._clock,
            limits=FleetLimits(per_hour=self._config.price.per_hour, total=self._config.price.total),
            prepare=self._prepare,
        )
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._failed: dict[str, str] = {}
        self._failures: Counter[str] = Counter()
        self._failed_s: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------------ Ray's interface

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Return the ids of the machines that run or boot; one look at the provider, in each turn of the autoscaler."""
        machines = {each.id: each for each in self._fleet.look()}
        with self._lock:
            self._machines = machines
        self._enforce(machines)
        self._finish_start(machines)
        write_atomic(self._folder / TURN, b"")
        return [each for each in machines if tag_filters.items() <= self.node_tags(each).items()]

    def is_running(self, node_id: str) -> bool:
        """Return whether a machine runs."""
        found = self._machine(node_id)
        return found is not None and found.state == "running"

    def is_terminated(self, node_id: str) -> bool:
        """Return whether a machine does not exist any more."""
        return self._machine(node_id) is None

    def node_tags(self, node_id: str) -> dict[str, str]:
        """Return what Ray must know of a machine."""
        found = self._machine(node_id)
        if found is None:
            return {}
        kind = NODE_KIND_HEAD if found.group == HEAD else NODE_KIND_WORKER
        tags = {
            TAG_RAY_NODE_KIND: kind,
            TAG_RAY_USER_NODE_TYPE: found.group,
            TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
        }
        request = self._fleet.request_of(found)
        return {**tags, TAG_RAY_LAUNCH_REQUEST: request} if request else tags

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Ignore Ray's tags: what it reads back follows from the journal."""

    def internal_ip(self, node_id: str) -> str:
        """Return a machine's address."""
        found = self._machine(node_id)
        return "" if found is None else found.address

    def external_ip(self, node_id: str) -> str:
        """Return a machine's address."""
        return self.internal_ip(node_id)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Make machines: all or none.

        Raises:
            ProviderError: none was made; Ray shows the message and asks again.
        """
        group = tags[TAG_RAY_USER_NODE_TYPE]
        with self._lock:
            since_s = self._clock.monotonic() - self._failed_s.get(group, 0.0)
            if self._failures[group] >= _MOST_FAILURES and since_s < _FAILURE_PAUSE_S:
                last = next(reversed(self._failed.values()), "")
                raise NoCapacityError(f"{self._failures[group]} nodes of `{group}` failed in a row: {last}")
        machines = self._fleet.create(group, count, tags.get(TAG_RAY_LAUNCH_REQUEST) or uuid.uuid4().hex)
        with self._lock:
            self._machines.update({each.id: each for each in machines})
        return {each.id: {} for each in machines}

    def terminate_node(self, node_id: str) -> None:
        """End a machine; idempotent."""
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: list[str]) -> None:
        """End machines; idempotent. The head ends itself, or the client ends it."""
        ids = [each for each in node_ids if (found := self._machine(each)) is None or found.group != HEAD]
        if ids:
            self._fleet.terminate(ids, "Ray does not need it")

    # -------------------------------------------------------------------------------------------------------- private

    def _machine(self, node_id: str) -> Machine | None:
        with self._lock:
            return self._machines.get(node_id)

    def _enforce(self, machines: dict[str, Machine]) -> None:
        """End nodes that failed, and the cluster when it has cost enough."""
        workers = [each for each in machines.values() if each.group != HEAD]
        if self._fleet.is_over_total:
            # first: it needs no provider, and the store tells it to the workers
            NodeFolder(self._folder).request_stop()
            if workers:
                why = f"the cluster cost {self._fleet.limits.total:g} USD"
                self._fleet.terminate([each.id for each in workers], why)
            return
        for status in node_statuses(self._folder):
            name, group = str(status["instance"]), str(status["group"])
            if status["state"] == "ready":
                self._failures[group] = 0
            if status["state"] == "failed" and name in machines and name not in self._failed:
                with self._lock:
                    self._failed[name] = str(status["message"])
                    self._failures[group] += 1
                    self._failed_s[group] = self._clock.monotonic()
                self._fleet.terminate([name], f"its node failed: {status['message']}"[:500])

    def _finish_start(self, machines: dict[str, Machine]) -> None:
        """Let the nodes of the start that are above the least end when idle, once all of them were ready."""
        if (self._folder / INITIAL_DONE).exists():
            return
        statuses = node_statuses(self._folder)
        ready = Counter(str(each["group"]) for each in statuses if each["ready_at"] is not None)
        if all(ready[name] >= max(group.least, group.initial) for name, group in self._config.groups.items()):
            write_atomic(self._folder / INITIAL_DONE, b"")
            write_ray_config(self._folder, self._config, self.cluster_name)

    def _prepare(self, request: CreateRequest) -> CreateRequest:
        """Add the script that the machines run, and when they end."""
        status, head = NodeFolder(self._folder).read_status(), self._head
        assert status is not None
        place = self._config.place
        node = NodeBoot(
            store=f"{status.address}:{head.store_port}",
            token=head.auth_token,
            group=request.group,
            metadata=head.metadata,
            user="" if place.aws is None else place.aws.user,
            patience_s=silence_limit_s(head),
        )
        deadline_at = None if head.ttl_s is None else status.began_at + head.ttl_s
        left_s = None if deadline_at is None else max(1.0, deadline_at - self._clock.now())
        boot = render_boot(shutdown=head.shutdown, deadline_at=deadline_at, deadline_s=left_s, node=node)
        return replace(request, boot=boot, deadline_at=deadline_at)
