"""Rounds of a cluster on an EC2 with scripted faults, whose client is killed at random calls, during up and down.

A round brings a cluster up and down with clients that are killed, and then compares the ledger with the journal. Every
other cluster may be in two regions.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.cloud import OTHER_REGION, REGION, CloudLab
from tests.lab.ec2_ledger import Fault
from tests.system.cluster.faulty_clients import Clients
from windlass.cluster.cost import cluster_cost
from windlass.cluster.state import fold
from windlass.record.journal import read_journal

__all__ = ["Outcome", "play", "table"]

WINDOW_S = 1.0
LIE_S = 0.7
NUM_FAULTS = 4
FILE = """
name: lab
place: {{aws: {{region: {region}, endpoint: "{url}"}}}}
head: {{types: [m5.large]}}
groups: {{workers: {{types: [m5.large, c5.large], count: 3, market: spot-first}}}}
"""
KINDS = ("lost", "lost", "dropped", "throttled", "capacity", "internal", "delay", "lie")
ACTIONS = ("RunInstances", "RunInstances", "RunInstances", "TerminateInstances", "DescribeInstances")


@dataclass(slots=True)
class Outcome:
    """What happened, and what was wrong; `ledger_s` has whole seconds as EC2's own times have.

    Attributes:
        slack_s: by how much the ledger's times may be off from EC2's own, on a machine as busy as it was.
    """

    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    machines: int = 0
    requests: int = 0
    leaked: int = 0
    doubled: int = 0
    unknown: int = 0
    ledger_s: float = 0.0
    exact_s: float = 0.0
    cost_s: float = 0.0
    slack_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.faults += other.faults
        self.kills += other.kills
        for name in ("machines", "requests", "leaked", "doubled", "unknown"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("ledger_s", "exact_s", "cost_s", "slack_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.problems += other.problems


def play(cloud: CloudLab, folder: Path, seed: int, num_faults: int) -> Outcome:
    """Play rounds until so many faults have happened; what is wrong is in the outcome's problems."""
    total = Outcome()
    clients = Clients(cloud.env)
    try:
        while total.faults.total() < num_faults and not total.problems:
            total.add(_round(cloud, folder, clients, seed))
            seed += 1
    finally:
        clients.close()
    return total


def table(outcome: Outcome) -> str:
    """Return the figures as text."""
    off = 100 * abs(outcome.cost_s - outcome.ledger_s) / max(outcome.ledger_s, 1.0)
    rows = [
        ("faults that happened", f"{outcome.faults.total()}"),
        *((f"  {name}", str(count)) for name, count in sorted(outcome.faults.items())),
        ("clients killed", f"{outcome.kills.total()}"),
        *((f"  {name}", str(count)) for name, count in sorted(outcome.kills.items())),
        ("requests with a token", f"{outcome.requests}"),
        ("instances", f"{outcome.machines}"),
        ("leaked", f"{outcome.leaked}"),
        ("doubled", f"{outcome.doubled}"),
        ("not in the journal", f"{outcome.unknown}"),
        ("seconds: ledger, whole as EC2 states them", f"{outcome.ledger_s:.0f}"),
        ("seconds: ledger, exact", f"{outcome.exact_s:.1f}"),
        ("seconds: cost of the journal", f"{outcome.cost_s:.1f} ({off:.2f} % off)"),
    ]
    return "\n".join(f"{name:<42} {value}" for name, value in rows)


class _Killer:
    """Kills the client before or after its n-th call; called by the front."""

    def __init__(self, clients: Clients, outcome: Outcome) -> None:
        self._clients, self._outcome = clients, outcome
        self._lock = threading.Lock()
        self._action, self._left, self._phase = "", 0, ""

    def arm(self, action: str, number: int, phase: str) -> None:
        """Choose the call: the n-th of an action, or of all if it is empty; 0: none."""
        with self._lock:
            self._action, self._left, self._phase = action, number, phase

    def __call__(self, action: str, phase: str) -> None:
        with self._lock:
            if not self._left or phase != self._phase or self._action not in {"", action}:
                return
            self._left -= 1
            if self._left:
                return
        self._clients.kill()
        self._outcome.kills[f"{phase} {action}"] += 1


def _round(cloud: CloudLab, folder: Path, clients: Clients, seed: int) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome()
    front, cluster, here = cloud.front, f"lab-{seed}", folder / str(seed)
    here.mkdir()
    known = {each.id for each in front.ledger.all()}
    killer = _Killer(clients, outcome)
    front.on_call = killer
    faults = [_fault(rng) for _ in range(NUM_FAULTS)]
    times = [fault.times for fault in faults]
    front.order(*faults)
    file = FILE.format(region=REGION, url=front.url)
    if seed % 2:
        file = file.replace(f"region: {REGION}", f"regions: [{OTHER_REGION}, {REGION}]")
    job = {"file": file, "folder": str(here), "cluster": cluster}
    try:
        for wish in ("up", "down"):
            for _ in range(rng.randint(0, 2)):
                killer.arm(*_moment(rng, wish))
                code = clients.run({**job, "wish": wish, "window_s": WINDOW_S})
                if code not in {0, -9}:
                    outcome.problems.append(f"seed {seed}: {wish} ended with {code}")
            killer.arm("", 0, "")
            if wish == "up" and rng.random() < 0.8:  # else the user changes their mind: `down` follows a killed `up`
                code = clients.run({**job, "wish": "up", "window_s": WINDOW_S})
                if code:
                    outcome.problems.append(f"seed {seed}: the last up ended with {code}")
                time.sleep(rng.uniform(0.5, 3.0))  # machines cost money
        code = clients.run({**job, "wish": "down", "window_s": WINDOW_S})
        if code:
            outcome.problems.append(f"seed {seed}: the last down ended with {code}")
    finally:
        front.on_call = lambda action, phase: None
        front.clear()
    for fault, number in zip(faults, times, strict=True):
        happened = number - max(fault.times, 0) if fault.do != "lie" else 1
        outcome.faults[f"{fault.do} {fault.code if fault.do == 'error' else ''}".strip()] += happened
    _compare(cloud, here, known, seed, outcome)
    return outcome


def _moment(rng: random.Random, wish: str) -> tuple[str, int, str]:
    """Return when a client is killed: as often at the calls that make and end machines as at any other."""
    phase = rng.choice(("before", "after"))
    if rng.random() < 0.5:
        return ("RunInstances" if wish == "up" else "TerminateInstances"), rng.randint(1, 2), phase
    return "", rng.randint(1, 16), phase


def _fault(rng: random.Random) -> Fault:
    kind, action, skip = rng.choice(KINDS), rng.choice(ACTIONS), rng.randint(0, 2)
    if kind == "lie":
        return Fault(action="DescribeInstances", do="lie", seconds=LIE_S, seconds_long=rng.uniform(1.0, 6.0))
    if kind == "delay":
        return Fault(action=action, do="delay", seconds=rng.uniform(0.1, 0.5), skip=skip)
    if kind == "throttled":
        return Fault(action=action, do="error", code="RequestLimitExceeded", status=503, skip=skip)
    if kind == "capacity":
        code = "InsufficientInstanceCapacity"
        return Fault(do="error", code=code, skip=skip, times=rng.randint(1, 3))
    if kind == "internal":
        return Fault(action=action, do="error", code="InternalError", skip=skip, times=rng.randint(1, 3))
    return Fault(action=action, do="lost" if kind == "lost" else "dropped", skip=skip, times=rng.randint(1, 3))


def _compare(cloud: CloudLab, folder: Path, known: set[str], seed: int, outcome: Outcome) -> None:
    """Compare the ledger with the journal."""
    state = fold(read_journal(folder / "journal"))
    made = [each for each in cloud.front.ledger.all() if each.id not in known]
    per_token = Counter(each.token for each in made)
    cost = cluster_cost(state.nodes.values(), 0.0)
    outcome.machines, outcome.requests = len(made), len(state.intents)
    outcome.leaked = sum(each.ended_at is None for each in made)
    outcome.doubled = sum(
        max(0, count - (state.intents[token].count if token in state.intents else 0))
        for token, count in per_token.items()
    )
    outcome.unknown = sum(each.id not in state.nodes for each in made)
    for each in made:
        end = each.ended_at or each.born_at
        outcome.exact_s += end - each.born_at
        outcome.slack_s += each.slack_s
        outcome.ledger_s += math.floor(end) - math.floor(each.born_at)
    outcome.cost_s = cost.seconds
    if outcome.leaked or outcome.doubled or outcome.unknown or not state.is_closed:
        text = (
            f"leaked {outcome.leaked}, doubled {outcome.doubled}, unknown {outcome.unknown}, closed {state.is_closed}"
        )
        outcome.problems.append(f"seed {seed}: {text}; journal in {folder}")
    far = [
        f"{each.id}: {cost.machines[each.id].seconds:.1f} s and {each.seconds:.1f} s"
        for each in made
        if each.id in cost.machines and abs(cost.machines[each.id].seconds - each.seconds) > 1.5 + each.slack_s
    ]
    outcome.problems += [f"seed {seed}: {text}" for text in far]
