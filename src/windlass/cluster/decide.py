"""Decisions about machines: what the journal says beside what the provider lists, to actions. Pure.

No machine is leaked: each request is in the journal before it is made, a lost reply is asked for by token until the
provider's window has passed, and a cluster is closed only once the provider lists nothing of it for that long, or once every
machine that was ever made is known by its id and ended. No machine is doubled: nothing is asked for in a group while the
result of an earlier request is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from windlass.cluster.config import HEAD
from windlass.cluster.machine import GONE, Choice, Machine
from windlass.cluster.state import NO_CAPACITY, ClusterState, Intent
from windlass.core.dataclass import dataclass

__all__ = [
    "Action",
    "Ask",
    "Close",
    "Create",
    "Describe",
    "Exhausted",
    "Observe",
    "Resolve",
    "TargetGroup",
    "Terminate",
    "View",
    "decide",
    "has_all",
]

_ASK_AGAIN_S = 2.0
_END_AGAIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGroup:
    """Target of a group of machines.

    Attributes:
        choices: kinds of machines to try, in order.
    """

    least: int
    most: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Observations of this process.

    Times are on its monotonic clock, so that wrong or changed wall clocks decide nothing.

    Attributes:
        nodes: the provider's last complete list; None: none yet.
        listed_s: when that list was requested.
        empty_s: since when lists have been empty without a break: the request of the first of them; None: they are not.
            The head may make machines until it ends, so only then does the provider's window begin.
        called_s: by token, when its machines may last have been requested; for requests of an earlier process, when
            this one first knew of them.
        asked_s: by token or id, when the provider was last asked about it.
        told_s: by id, when the provider was last told to end it.
        missed_s: by id, since when a machine is missing from lists.
    """

    nodes: tuple[Machine, ...] | None = None
    listed_s: float = 0.0
    empty_s: float | None = None
    called_s: Mapping[str, float] = field(default_factory=dict)
    asked_s: Mapping[str, float] = field(default_factory=dict)
    told_s: Mapping[str, float] = field(default_factory=dict)
    missed_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Record a machine as it is now."""

    node: Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask the provider what came of a request."""

    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """Ask the provider about machines that are missing from its list.

    Attributes:
        late: those that are missing for longer than lists lag behind: if the provider does not know them, they ended.
    """

    ids: tuple[str, ...]
    late: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve:
    """Record what came of a request."""

    token: str
    status: Literal["made", "void"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Record a request with a new token, and make it."""

    group: str
    count: int
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """Record that machines end, and end them."""

    ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """Every kind of machine of a group was tried; the group has none of what is missing."""

    group: str
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Record that nothing of the cluster exists any more."""


Action: TypeAlias = Observe | Ask | Describe | Resolve | Create | Terminate | Exhausted | Close


def decide(
    state: ClusterState, view: View, groups: Mapping[str, TargetGroup], *, window_s: float, now_s: float
) -> list[Action]:
    """Return what to do now; empty if there is nothing to do but wait.

    Args:
        groups: what is wanted while the cluster is up; machines of other groups end.
        window_s: how long the provider's lists may lag behind.
    """
    if state.is_closed or view.nodes is None:
        return []
    observed = list(_observe(state, view, window_s, now_s))
    if observed:
        return observed  # the journal first knows what is, then what should be
    pending = list(_settle(state, view, window_s, now_s))
    if state.wanted == "down":
        return [*pending, *_end(state, view, window_s, now_s)]
    return [*pending, *_fill(state, view, groups, now_s)]


def _observe(state: ClusterState, view: View, window_s: float, now_s: float) -> Iterator[Action]:
    """Yield what the list shows and the journal lacks."""
    assert view.nodes is not None
    listed = {node.id: node for node in view.nodes}
    for node in listed.values():
        known = state.nodes.get(node.id)
        if known != node and (known is None or known.state != "ended"):
            yield Observe(node=node)
    missing = [node.id for node in state.living() if node.id not in listed]
    due = tuple(each for each in missing if _is_due(view.asked_s.get(each), _ASK_AGAIN_S, now_s))
    if due:
        late = [each for each in due if view.missed_s.get(each, now_s) + window_s <= view.listed_s]
        yield Describe(ids=due, late=frozenset(late))


def _settle(state: ClusterState, view: View, window_s: float, now_s: float) -> Iterator[Action]:
    """Yield what finds out, or states, what came of requests."""
    made = Counter(node.token for node in state.nodes.values())
    for intent in state.open_intents:
        called_s = view.called_s.get(intent.token, now_s)
        asked_s = view.asked_s.get(intent.token)
        if made[intent.token] >= intent.count:
            yield Resolve(token=intent.token, status="made")
        elif asked_s is not None and asked_s >= called_s + window_s and view.listed_s >= called_s + window_s:
            yield Resolve(token=intent.token, status="made" if made[intent.token] else "void", reason="never created")
        elif _is_due(asked_s, _ASK_AGAIN_S, now_s):
            yield Ask(token=intent.token)


def _end(state: ClusterState, view: View, window_s: float, now_s: float) -> Iterator[Action]:
    """Yield what ends every machine, and the cluster when none is left."""
    assert view.nodes is not None
    living = [node.id for node in state.living() if node.state not in GONE]
    due = tuple(each for each in living if _is_due(view.told_s.get(each), _END_AGAIN_S, now_s))
    if due:
        yield Terminate(ids=due, why=state.why or "down")
    is_empty = not state.living() and view.empty_s is not None
    if is_empty and not state.open_intents:
        assert view.empty_s is not None
        if _is_accounted(state) or view.listed_s >= view.empty_s + window_s:
            yield Close()


def _is_accounted(state: ClusterState) -> bool:
    """Return whether the journal has every machine that was ever made, so that lists can hide none.

    Those are the machines of our own requests and, if there ever was a head, those of that one head's sealed journal. What
    an earlier head made last is unknown: its journal is lost with it.
    """
    heads = {node.id for node in state.nodes.values() if node.group == HEAD}
    return heads <= {state.accounted} and has_all(state.intents.values(), state.nodes.values())


def has_all(requests: Iterable[Intent], machines: Iterable[Machine]) -> bool:
    """Return whether the result of every request is known, and every machine of it."""
    made = Counter(machine.token for machine in machines)
    return all(each.status == "void" or (each.status == "made" and made[each.token] >= each.count) for each in requests)


def _is_due(last_s: float | None, interval_s: float, now_s: float) -> bool:
    return last_s is None or last_s + interval_s <= now_s


def _fill(state: ClusterState, view: View, groups: Mapping[str, TargetGroup], now_s: float) -> Iterator[Action]:
    """Yield what brings every group to its number of machines."""
    surplus: list[str] = []
    for name in sorted({node.group for node in state.living()} | set(groups)):
        group = groups.get(name, TargetGroup(least=0, most=0, choices=()))
        there = [node for node in state.living(name) if node.state not in GONE]
        num_open = sum(intent.count for intent in state.open_intents if intent.group == name)
        surplus += [node.id for node in sorted(there, key=_oldest_first)[group.most :]]
        missing = group.least - len(there)
        if missing > 0 and not num_open:
            yield _next_request(state, name, group, missing)
    due = tuple(sorted(each for each in surplus if _is_due(view.told_s.get(each), _END_AGAIN_S, now_s)))
    if due:
        yield Terminate(ids=due, why="more than the file asks for")


def _oldest_first(node: Machine) -> tuple[float, str]:
    return node.born_at, node.id


def _next_request(state: ClusterState, name: str, group: TargetGroup, missing: int) -> Action:
    """Return a request for the first kind that is not known to be used up."""
    used_up = _used_up(state, name)
    for choice in group.choices:
        num_used = sum(node.choice == choice for node in state.living())
        if choice not in used_up and (not choice.most or num_used < choice.most):
            count = min(missing, choice.most - num_used) if choice.most else missing
            return Create(group=name, count=count, choice=choice)
    return Exhausted(group=name, missing=missing)


def _used_up(state: ClusterState, name: str) -> set[Choice]:
    """Return the kinds that were refused for want of machines since the last wish, and since the last machine came."""
    found: set[Choice] = set()
    for intent in state.intents.values():
        if intent.group == name and intent.round == state.round:
            if intent.status == "made":
                found.clear()
            elif intent.reason == NO_CAPACITY:
                found.add(intent.choice)
    return found
