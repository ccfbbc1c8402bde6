"""Rounds of a head whose autoscaler scales on an EC2 with scripted faults, and is killed at random calls.

A round makes a head, asks for numbers of machines one after the other, brings the cluster down as `windlass cluster down`
does, and then compares the ledger with the journals of client and head.
"""

from __future__ import annotations

import json
import math
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from unittest.mock import patch

from tests.lab.cloud import REGION, CloudLab
from tests.system.cluster.cloud_faults import FILE as CLIENT_FILE
from tests.system.cluster.cloud_faults import NUM_FAULTS, WINDOW_S, Outcome, _fault, _Killer, table
from tests.system.cluster.scaling.faulty_monitors import SEALED, WANTED, Monitors
from windlass.backends.site_shell import ShellResult, SiteShell
from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.controller import ClusterController
from windlass.cluster.cost import cluster_cost
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.aws.provider import AwsProvider
from windlass.cluster.state import ClusterState, fold
from windlass.cluster.up import bring_down, groups_of
from windlass.config.loading import load_config
from windlass.core.clock import SystemClock
from windlass.core.errors import UnreachableError
from windlass.core.files import write_atomic
from windlass.record.journal import read_journal
from windlass.runs.home import Home
from windlass.supervise.node.node_status import status_lines
from windlass.supervise.node.seal import FLEET_JOURNAL, seal_fleet
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus

__all__ = ["FleetOutcome", "fleet_table", "play_fleet"]

FILE = CLIENT_FILE.replace("groups: {{", "groups: {{more: {{types: [c5.large], max: 3}}, ").replace(
    "count: 3", "max: 5"
)
_SETTLE_S = 300.0
_MOST_KILLS = 5


@dataclass(slots=True)
class FleetOutcome(Outcome):
    """Outcome of rounds; `num_early` is in how many `down` knew all machines, and did not wait for the window."""

    num_rounds: int = 0
    num_early: int = 0

    def add(self, other: Outcome) -> None:
        Outcome.add(self, other)
        self.num_rounds += 1
        self.num_early += other.num_early if isinstance(other, FleetOutcome) else 0


def fleet_table(outcome: FleetOutcome) -> str:
    """Return the figures as text."""
    text = table(outcome).replace("clients killed ", "monitors killed")
    early = f"{outcome.num_early} of {outcome.num_rounds}"
    return f"{text}\n{'`down` without the wait for lists':<42} {early}"


def play_fleet(cloud: CloudLab, folder: Path, seed: int, num_faults: int) -> FleetOutcome:
    """Play rounds until so many faults have happened; what is wrong is in the outcome's problems."""
    total = FleetOutcome()
    monitors = Monitors(cloud.env)
    try:
        while total.faults.total() < num_faults and not total.problems:
            total.add(_Round(cloud, folder / str(seed), monitors, seed).play())
            seed += 1
    finally:
        monitors.close()
    return total


class _HeadShell:
    """Shell of the head, of which only the seal is asked; it may not respond, before or after it did what it was asked."""

    name, is_local = "head", False

    def __init__(self, folder: Path, monitors: Monitors, rng: random.Random) -> None:
        self._folder, self._monitors = folder, monitors
        self._lost = rng.choice(("", "", "", "before", "after"))

    def run(self, argv: Sequence[str], **_: object) -> ShellResult:
        assert argv[5] == "node-seal"
        if self._lost == "before":
            raise UnreachableError("no route to the head", code="site-unreachable")
        seal_fleet(self._folder, self._monitors.kill)
        if self._lost:
            raise UnreachableError("the reply was lost", code="site-unreachable")
        return ShellResult(0, "".join(json.dumps(line) + "\n" for line in status_lines(self._folder)), "")


class _Round:
    def __init__(self, cloud: CloudLab, folder: Path, monitors: Monitors, seed: int) -> None:
        folder.mkdir()
        self.cloud, self.front, self.monitors, self.seed = cloud, cloud.front, monitors, seed
        self.rng, self.outcome = random.Random(seed), FleetOutcome()
        text = FILE.format(region=REGION, url=cloud.front.url)
        self.config = load_config(ClusterConfig, text, source="cluster.yaml").value
        self.home = ClusterHome.create(Home(folder / "home"), self.config)
        self.head_folder = folder / "head"
        self.head_folder.mkdir()
        self.provider = AwsProvider(self.config, cluster=self.home.id, folder=self.home.path, window_s=WINDOW_S)
        shell = cast(SiteShell, _HeadShell(self.head_folder, monitors, self.rng))
        self.place = MachinePlace(provider=self.provider, host=lambda machine: NodeHost(shell, self.home.id))
        self.known = {each.id for each in self.front.ledger.all()}
        self.killer = _Killer(monitors, self.outcome)
        self.is_over = threading.Event()

    def play(self) -> FleetOutcome:
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, self.cloud.env))
            stack.callback(self.front.clear)
            head = self._make_head()
            self._want(0, 0)
            self.front.on_call = self.killer
            stack.callback(setattr, self.front, "on_call", lambda action, phase: None)
            self.front.on_end = lambda name: self._end_with(head.id, name)
            stack.callback(setattr, self.front, "on_end", lambda name: None)
            agent = threading.Thread(target=self._keep_monitor)
            agent.start()
            try:
                self._scale()
                bring_down(self.home, self.config, self.place, report=lambda line: None)
            finally:
                self.is_over.set()
                self.monitors.kill()
                agent.join()
        self._compare()
        return self.outcome

    def _make_head(self) -> Machine:
        """Make the head as `up` does, and its folder as its agent has it."""
        with self.home.acting() as journal:
            controller = ClusterController(
                self.home.id,
                self.provider,
                journal,
                self.home.state(),
                groups=groups_of(self.config, self.provider),
                clock=SystemClock(),
            )
            controller.want("up")
            while not (heads := [each for each in controller.state.living(HEAD) if each.state == "running"]):
                controller.round()
        (head,) = heads
        (self.head_folder / "cluster.yaml").write_bytes((self.home.path / "cluster.yaml").read_bytes())
        spec = NodeSpec(
            cluster=self.home.id,
            token=head.token,
            number=0,
            address=head.address,
            ttl_s=3600.0,
            auth_token=self.home.token,
            group=HEAD,
            instance=head.id,
            store_port=1,
            shutdown="shutdown now",
            metadata="aws",
            is_scaled=True,
        )
        (self.head_folder / "spec.json").write_bytes(spec.to_json())
        status = NodeStatus(
            token=head.token, state="ready", address=head.address, began_at=time.time(), instance=head.id
        )
        NodeFolder(self.head_folder).write_status(status)
        return head

    def _keep_monitor(self) -> None:
        """Start the monitor whenever it is dead, as the head's agent does."""
        while not self.is_over.is_set():
            code = self.monitors.run({"folder": str(self.head_folder), "cluster": self.home.id, "window_s": WINDOW_S})
            if code not in {-9, SEALED}:
                self._fails(f"a monitor ended with {code}: {self.head_folder}/monitor.log")
                return
            self.is_over.wait(0.1)

    def _end_with(self, head: str, name: str) -> None:
        """End the monitor with its machine."""
        if name == head:
            self.is_over.set()
            self.monitors.kill()

    def _scale(self) -> None:
        """Ask for machines and wait for them, or not; at the end the ledger has what was asked for, or `down` comes early."""
        faults = [_fault(self.rng) for _ in range(NUM_FAULTS)]
        times = [fault.times for fault in faults]
        self.front.order(*faults)
        for _ in range(self.rng.randint(2, 4)):
            self._want(self.rng.randint(0, 5), self.rng.randint(0, 3))
            self._arm()
            if self.rng.random() < 0.7:
                self._settle()
            time.sleep(self.rng.uniform(0.2, 3.0))  # machines cost money
        self.killer.arm("", 0, "")
        for fault, number in zip(faults, times, strict=True):
            happened = number - max(fault.times, 0) if fault.do != "lie" else 1
            self.outcome.faults[f"{fault.do} {fault.code if fault.do == 'error' else ''}".strip()] += happened
        if self.rng.random() < 0.5:
            self.front.clear()
            self._settle()

    def _want(self, workers: int, more: int) -> None:
        self.wanted = {"workers": workers, "more": more}
        write_atomic(self.head_folder / WANTED, json.dumps(self.wanted).encode())

    def _arm(self) -> None:
        """Choose when the monitor is killed: as often at the calls that make and end machines as at any other."""
        phase = self.rng.choice(("before", "after"))
        if self.outcome.kills.total() >= _MOST_KILLS:
            self.killer.arm("", 0, "")
        elif self.rng.random() < 0.6:
            action = self.rng.choice(("RunInstances", "RunInstances", "TerminateInstances"))
            self.killer.arm(action, self.rng.randint(1, 2), phase)
        else:
            self.killer.arm("", self.rng.randint(1, 24), phase)

    def _settle(self) -> None:
        """Wait until head and ledger have the machines that are wanted, and no request is open."""
        end_s, kills = time.monotonic() + _SETTLE_S, self.outcome.kills.total()
        while not self._is_settled():
            if time.monotonic() > end_s or self.outcome.problems:
                self._fails(f"not settled at {self.wanted}: {self.head_folder}")
                return
            if self.outcome.kills.total() > kills:
                kills = self.outcome.kills.total()
                self._arm()
            time.sleep(0.05)

    def _is_settled(self) -> bool:
        state = self._head_state()
        living = Counter(each.group for each in state.living() if each.group != HEAD)
        num_alive = sum(each.id not in self.known for each in self.front.ledger.alive())
        wanted = +Counter(self.wanted)
        return living == wanted and not state.open_intents and num_alive == 1 + wanted.total()

    def _head_state(self) -> ClusterState:
        folder = self.head_folder / FLEET_JOURNAL
        return fold(read_journal(folder)) if folder.is_dir() else ClusterState()

    def _compare(self) -> None:
        """Compare the ledger with the journals: what the client knows at the end, and what the head knew."""
        client, head = self.home.state(), self._head_state()
        nodes = {**head.nodes, **{name: node for name, node in client.nodes.items() if node.state == "ended"}}
        intents = {**head.intents, **client.intents}
        made = [each for each in self.front.ledger.all() if each.id not in self.known]
        per_token, cost, found = Counter(each.token for each in made), cluster_cost(nodes.values(), 0.0), self.outcome
        found.machines, found.requests = len(made), len(intents)
        found.leaked = sum(each.ended_at is None for each in made)
        asked = {token: intents[token].count if token in intents else 0 for token in per_token}
        found.doubled = sum(max(0, count - asked[token]) for token, count in per_token.items())
        found.unknown = sum(each.id not in nodes for each in made)
        for each in made:
            end = each.ended_at or each.born_at
            found.exact_s += end - each.born_at
            found.ledger_s += math.floor(end) - math.floor(each.born_at)
        found.cost_s = cost.seconds
        if found.leaked or found.doubled or found.unknown or not client.is_closed:
            self._fails(
                f"leaked {found.leaked}, doubled {found.doubled}, unknown {found.unknown}, closed {client.is_closed}"
            )
        found.num_early = int(bool(client.accounted))

    def _fails(self, text: str) -> None:
        self.outcome.problems.append(f"seed {self.seed}: {text}")
