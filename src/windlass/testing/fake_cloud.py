"""Cloud in memory with the faults of a real one, and a ledger of its machines that no client can see.

Verified: it passes the same conformance suite as the real providers.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace

from windlass.cluster.config import ClusterConfig
from windlass.cluster.machine import Choice, Machine, Notice
from windlass.cluster.providers.protocol import (
    CreateRequest,
    NoCapacityError,
    RefusedError,
    ThrottledError,
    UncertainError,
)
from windlass.core.clock import FakeClock
from windlass.core.dataclass import dataclass
from windlass.core.errors import Problem

__all__ = ["CloudFaults", "FakeCloud"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFaults:
    """Probabilities of a call's faults, and sizes."""

    lost_reply: float = 0.0
    dropped: float = 0.0
    throttled: float = 0.0
    no_capacity: float = 0.0
    refused: float = 0.0
    lag_s: float = 0.0
    end_s: float = 0.0
    dies: float = 0.0


@dataclass(slots=True)
class _Machine:
    node: Machine
    visible_s: float
    ends_s: float | None = None
    deadline_at: float | None = None


@dataclass(slots=True)
class FakeCloud:
    """Provider whose machines exist in the ledger at once, and in lists after a lag of up to `window_s`."""

    clock: FakeClock
    rng: random.Random
    faults: CloudFaults = CloudFaults()
    window_s: float = 10.0
    name: str = "fake"
    is_rented: bool = True
    hidden_s: float = 0.0
    machines: dict[str, _Machine] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    made: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        return []

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        return [Choice(type="small"), Choice(type="large")]

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        self._call("list")
        return [
            each.node
            for each in self._all()
            if each.node.tags["windlass-cluster"] == cluster and each.node.state != "ended"
        ]

    def find(self, token: str) -> Sequence[Machine]:
        self._call("find")
        return [each.node for each in self._all() if each.node.token == token]

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        self._call("describe")
        return [each.node for each in self._all() if each.node.id in ids]

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        is_lost = self._call("create")
        with self.lock:
            if self.made[request.token]:
                return [each.node for each in self.machines.values() if each.node.token == request.token]
            if self._chance(self.faults.no_capacity):
                raise NoCapacityError("no machines of this kind")
            if self._chance(self.faults.refused):
                raise RefusedError("the key is invalid", hint="set another one")
            nodes = self.add(request)
        if is_lost:
            raise UncertainError("the reply was lost")
        return nodes

    def terminate(self, ids: Sequence[str]) -> None:
        is_lost = self._call("terminate")
        for each in ids:
            machine = self.machines.get(each)
            if machine is not None and machine.node.state == "running":
                machine.node = replace(machine.node, state="ending")
                machine.ends_s = self.clock.monotonic() + self.rng.uniform(0, self.faults.end_s)
        if is_lost:
            raise UncertainError("the reply was lost")

    def notices(self) -> Sequence[Notice]:
        return []

    def add(self, request: CreateRequest) -> list[Machine]:
        """Make machines, without faults."""
        nodes = []
        for _ in range(request.count):
            node = Machine(
                id=f"m{len(self.machines)}",
                token=request.token,
                group=request.group,
                state="running",
                address=f"10.0.{len(self.machines) // 250}.{len(self.machines) % 250 + 1}",
                choice=request.choice,
                born_at=self.clock.now(),
                tags={
                    "windlass-cluster": request.cluster,
                    "windlass-group": request.group,
                    "windlass-token": request.token,
                },
            )
            visible_s = self.clock.monotonic() + self.hidden_s + self.rng.uniform(0, self.faults.lag_s)
            self.machines[node.id] = _Machine(node, visible_s, deadline_at=request.deadline_at)
            nodes.append(node)
        self.made[request.token] += request.count
        return nodes

    # ---------------------------------------------------------------------------------------------------- the ledger

    def alive(self) -> list[Machine]:
        """Return every machine that costs money now, whatever lists show."""
        self._tick()
        return [each.node for each in self.machines.values() if each.node.state != "ended"]

    def seconds(self) -> float:
        """Return the seconds that all machines have cost."""
        self._tick()
        now = self.clock.now()
        ends = [
            (each.node.born_at, now if each.node.ended_at is None else each.node.ended_at)
            for each in self.machines.values()
        ]
        return sum(end - born for born, end in ends)

    def kill(self, node: str) -> None:
        """End a machine, as a provider that takes it back does."""
        self.machines[node].node = replace(
            self.machines[node].node, state="ended", ended_at=self.clock.now(), why="taken back"
        )

    # ------------------------------------------------------------------------------------------------------- private

    def _all(self) -> list[_Machine]:
        self._tick()
        return [each for each in self.machines.values() if each.visible_s <= self.clock.monotonic()]

    def _tick(self) -> None:
        for each in self.machines.values():
            if each.deadline_at is not None and each.deadline_at <= self.clock.now() and each.node.state != "ended":
                why = "its deadline has passed"
                each.node = replace(each.node, state="ended", ended_at=each.deadline_at, why=why)
            if each.ends_s is not None and each.ends_s <= self.clock.monotonic() and each.node.state == "ending":
                ended_at = self.clock.now() - (self.clock.monotonic() - each.ends_s)
                each.node = replace(each.node, state="ended", ended_at=ended_at, why="terminated")

    def _call(self, name: str) -> bool:
        """Count a call and play its faults; return whether its reply is lost after it was carried out."""
        self.calls[name] += 1
        self.clock.advance(self.rng.uniform(0.01, 0.2))
        if self._chance(self.faults.throttled):
            raise ThrottledError("too many requests", after_s=1.0)
        if self._chance(self.faults.dropped):
            raise UncertainError("no reply")
        is_lost = self._chance(self.faults.lost_reply)
        if is_lost and name not in {"create", "terminate"}:
            raise UncertainError("the reply was lost")
        return is_lost

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability
